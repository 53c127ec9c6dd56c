//! Limits on what a chat template may cost. The template comes with a model's file and runs in the
//! server, so it must not be able to hang it or to eat its memory.
//!
//! Fuel bounds the steps; `instrument` adds to the bytecode a look at every value a step makes:
//! no value may be large or deep when written out in full, all together may not exceed a budget,
//! and a deadline holds. The few operations that can make much out of little in one step have
//! checked twins in `template.rs`.
use minijinja::machinery::{tokenize, Instruction, Instructions, Token, WhitespaceConfig};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use std::cell::Cell;
use std::time::{Duration, Instant};

const MAX_DEPTH: usize = 64;
/// What an element of a list or map counts for, beside its own bytes.
const ELEMENT_BYTES: usize = 8;
/// How far an expression may repeat what the template spells out.
const MAX_CONSTANT_GROWTH: u64 = 256;
const TIME_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
struct Budget {
    /// For one value.
    cap_bytes: usize,
    /// For all values of the render that are still to come.
    left_bytes: usize,
    deadline: Instant,
}

thread_local! {
    static BUDGET: Cell<Budget> = Cell::new(Budget {
        cap_bytes: 0, left_bytes: 0, deadline: Instant::now() });
}

/// Starts a render on this thread whose input has `input_bytes`.
pub fn begin(input_bytes: usize) {
    BUDGET.set(Budget {
        cap_bytes: (1 << 20) + 8 * input_bytes,
        left_bytes: (64 << 20) + 64 * input_bytes,
        deadline: Instant::now() + TIME_LIMIT,
    });
}

fn refuse(words: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, words)
}

/// An error where a value of `bytes` would be over the limit.
pub fn allow(bytes: Option<usize>) -> Result<(), Error> {
    match bytes {
        Some(bytes) if bytes <= BUDGET.get().cap_bytes => Ok(()),
        _ => Err(refuse("a value is too large")),
    }
}

pub fn spend(bytes: usize) -> Result<(), Error> {
    let mut budget = BUDGET.get();
    budget.left_bytes =
        budget.left_bytes.checked_sub(bytes).ok_or_else(|| refuse("it uses too much memory"))?;
    BUDGET.set(budget);
    Ok(())
}

/// The value, if it is within the limits of size, depth and time.
pub fn check(value: Value) -> Result<Value, Error> {
    let budget = BUDGET.get();
    if Instant::now() > budget.deadline {
        return Err(refuse("it takes too long"));
    }
    let mut left = budget.cap_bytes;
    measure(&value, &mut left, MAX_DEPTH)?;
    Ok(value)
}

/// `check`, for a value just made: its own bytes count against the budget.
pub fn charge(value: Value) -> Result<Value, Error> {
    let value = check(value)?;
    let own_bytes = match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(1).saturating_mul(4 * ELEMENT_BYTES),
    };
    spend(own_bytes)?;
    Ok(value)
}

/// A namespace may hold no namespace: so nothing can come to hold itself.
fn member(value: Value) -> Result<Value, Error> {
    if holds_namespace(&value) {
        return Err(refuse("a namespace inside a namespace"));
    }
    Ok(value)
}

fn holds_namespace(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    object.type_name().ends_with("Namespace") || children(value).any(|v| holds_namespace(&v))
}

/// Elements of a list, values of a map.
fn children(value: &Value) -> impl Iterator<Item = Value> + '_ {
    let is_map = value.kind() == ValueKind::Map;
    let plain = value.as_object().is_none_or(|o| o.repr() == ObjectRepr::Plain);
    let elements = if plain { None } else { value.try_iter().ok() };
    elements.into_iter().flatten().map(move |element| match is_map {
        true => value.get_item(&element).unwrap_or_default(),
        false => element,
    })
}

/// Takes what the value would fill, written out in full, from `left`.
fn measure(value: &Value, left: &mut usize, depth: usize) -> Result<(), Error> {
    let bytes = value.as_str().map_or(ELEMENT_BYTES, |text| text.len() + ELEMENT_BYTES);
    *left = left.checked_sub(bytes).ok_or_else(|| refuse("a value is too large"))?;
    if value.as_object().is_none() {
        return Ok(());
    }
    if depth == 0 {
        return Err(refuse("values are nested too deeply"));
    }
    children(value).try_for_each(|child| measure(&child, left, depth - 1))
}

pub fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("pd_check", check);
    env.add_filter("pd_charge", charge);
    env.add_filter("pd_member", member);
}

/// Refuses a template whose constant expressions could grow large: the compiler computes them,
/// out of reach of the other limits.
pub fn refuse_large_constants(source: &str) -> Result<(), Error> {
    let (mut growth, mut multiplies, mut raises) = (1, false, false);
    for token in tokenize(source, false, SyntaxConfig, WhitespaceConfig::default()) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => {
                (growth, multiplies, raises) = (1, false, false)
            }
            Token::Int(number) => growth = number.saturating_add(1).saturating_mul(growth),
            Token::Int128(_) => growth = u64::MAX,
            Token::Mul => multiplies = true,
            Token::Pow => raises = true,
            _ => {}
        }
        if multiplies && (raises || growth > MAX_CONSTANT_GROWTH) {
            return Err(refuse("it multiplies by a large constant"));
        }
    }
    Ok(())
}

/// The same program with the checks in it.
pub fn instrument<'s>(program: &Instructions<'s>) -> Instructions<'s> {
    let steps = || (0..program.len() as u32).filter_map(|i| program.get(i));
    let mut starts = Vec::with_capacity(program.len() + 1);
    let mut position = 0;
    for step in steps() {
        starts.push(position);
        position += expand(step.clone()).len() as u32;
    }
    starts.push(position);
    let moved = |target: u32| starts.get(target as usize).copied().unwrap_or(position);
    let mut checked = Instructions::new(program.name(), program.source());
    for step in steps() {
        for step in expand(step.clone()) {
            checked.add(retarget(step, moved));
        }
    }
    checked
}

fn filter(name: &'static str, count: u16) -> Instruction<'static> {
    const NOT_CACHED: u8 = !0;
    Instruction::ApplyFilter(name, Some(count), NOT_CACHED)
}

fn expand(step: Instruction<'_>) -> Vec<Instruction<'_>> {
    use Instruction::*;
    match step {
        EmitRaw(text) => vec![LoadConst(Value::from(text)), Emit],
        LoadConst(ref value) if value.as_object().is_some() => vec![step, filter("pd_check", 1)],
        StringConcat => vec![filter("pd_concat", 2)],
        // The stack holds the new value and, on top, the namespace.
        SetAttr(_) => vec![filter("pd_check", 1), Swap, filter("pd_member", 1), Swap, step],
        Add | Mul | Slice | BuildMap(_) | BuildKwargs(_) | MergeKwargs(_) | BuildList(_)
        | ApplyFilter(..) | CallFunction(..) | CallMethod(..) | CallObject(_) | EndCapture => {
            vec![step, filter("pd_charge", 1)]
        }
        GetItem | Eq | Ne | Gt | Gte | Lt | Lte | In | CompareAndPreserve(_) | PerformTest(..) => {
            vec![step, filter("pd_check", 1)]
        }
        _ => vec![step],
    }
}

fn retarget(step: Instruction<'_>, moved: impl Fn(u32) -> u32) -> Instruction<'_> {
    use Instruction::*;
    match step {
        Iterate(target) => Iterate(moved(target)),
        Jump(target) => Jump(moved(target)),
        JumpIfFalse(target) => JumpIfFalse(moved(target)),
        JumpIfFalseOrPop(target) => JumpIfFalseOrPop(moved(target)),
        JumpIfTrueOrPop(target) => JumpIfTrueOrPop(moved(target)),
        BuildMacro(name, target, flags) => BuildMacro(name, moved(target), flags),
        step => step,
    }
}
