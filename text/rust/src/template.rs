//! The chat template: Jinja with the settings and extras that model makers rely on.
use crate::guard::{self, allow};
use crate::vocabulary::Vocabulary;
use crate::{Fallible, MAX_TEXT_BYTES};
use minijinja::machinery::{
    make_string_output, CompiledTemplate, Instructions, TemplateConfig, Vm, WhitespaceConfig,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Rest, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

const NAME: &str = "chat";
const FUEL: u64 = 2_000_000;
const RECURSION_LIMIT: usize = 100;
const MAX_TEMPLATE_BYTES: usize = 256 << 10;
const MAX_INDENT: usize = 256;

pub struct ChatTemplate {
    // Borrows from `source`, so it comes before it and is dropped first.
    program: Instructions<'static>,
    env: Environment<'static>,
    special_tokens: Vec<(&'static str, String)>,
    source: Box<str>,
}

impl ChatTemplate {
    pub fn compile(source: &str, vocabulary: &Vocabulary) -> Fallible<ChatTemplate> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(format!("a chat template of {} bytes is over the limit", source.len()));
        }
        let source: Box<str> = without_generation_tags(source)?.into();
        // SAFETY: the text lives on the heap as long as `source`, which the struct keeps unchanged
        // and drops after everything that borrows from it.
        let text: &'static str = unsafe { &*std::ptr::from_ref::<str>(&source) };
        let config = TemplateConfig {
            syntax_config: SyntaxConfig,
            ws_config: WhitespaceConfig {
                keep_trailing_newline: false,
                lstrip_blocks: true,
                trim_blocks: true,
            },
            default_auto_escape: Arc::new(|_| AutoEscape::None),
        };
        let compiled = guard::refuse_large_constants(text)
            .and_then(|()| CompiledTemplate::new(NAME, text, &config))
            .map_err(|e| format!("the chat template does not parse: {}", words(&e)))?;
        if !compiled.blocks.is_empty() {
            return Err("the chat template has blocks, which are not supported".into());
        }
        let name = |id: Option<u32>| id.map(|id| vocabulary.spelling[id as usize].clone());
        let special_tokens = [
            ("bos_token", name(vocabulary.bos)),
            ("eos_token", name(vocabulary.eos)),
            ("unk_token", name(vocabulary.unk)),
        ];
        Ok(ChatTemplate {
            program: guard::instrument(&compiled.instructions),
            env: environment(),
            special_tokens: special_tokens
                .into_iter()
                .filter_map(|(name, text)| text.map(|text| (name, text)))
                .collect(),
            source,
        })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// `input_bytes`: size of the messages as they came; the limits grow with it.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        input_bytes: usize,
        add_generation_prompt: bool,
    ) -> Fallible<String> {
        let mut variables: BTreeMap<&str, Value> = self
            .special_tokens
            .iter()
            .map(|(name, text)| (*name, Value::from(text.as_str())))
            .collect();
        variables.insert("messages", Value::from_serialize(messages));
        variables.insert("add_generation_prompt", Value::from(add_generation_prompt));
        variables.insert("tools", Value::from(()));
        variables.insert("documents", Value::from(()));
        guard::begin(input_bytes + self.source.len());
        let mut text = String::new();
        Vm::new(&self.env)
            .eval(
                &self.program,
                Value::from(variables),
                &BTreeMap::new(),
                &mut make_string_output(&mut text),
                AutoEscape::None,
            )
            .map_err(|e| complaint(&e))?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("the chat template wrote {} bytes", text.len()));
        }
        Ok(text)
    }
}

/// Marks the template's own complaint, made by raise_exception.
#[derive(Debug)]
struct Raised;

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Raised {}

fn complaint(error: &Error) -> String {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.is::<Raised>() {
            return error.detail().unwrap_or("the chat template refused").to_owned();
        }
        source = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => "the chat template failed: it runs too many steps".into(),
        _ => format!("the chat template failed: {}", words(error)),
    }
}

/// What went wrong, without the template's source.
fn words(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// `{% generation %}` only tells a trainer where answers are; to us it is an empty pair.
fn without_generation_tags(source: &str) -> Fallible<String> {
    let tag = |word| {
        Regex::new(&format!(r"\{{%([-+]?)\s*{word}\s*([-+]?)%\}}")).map_err(|e| e.to_string())
    };
    let opened = tag("generation")?.replace_all(source, "{%${1} if true ${2}%}").into_owned();
    Ok(tag("endgeneration")?.replace_all(&opened, "{%${1} endif ${2}%}").into_owned())
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_formatter(emit);
    env.set_unknown_method_callback(method);
    // They can make much out of little in one step, and no chat template needs them.
    for name in ["batch", "slice", "format", "pprint", "zip", "chain", "escape", "e"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    guard::add_filters(&mut env);
    env.add_filter("pd_concat", concat);
    env.add_filter("join", join_filter);
    env.add_filter("replace", |s: Value, old: &str, new: &str| replace(&show(&s)?, old, new, None));
    env.add_filter("indent", indent);
    env.add_filter("map", map);
    env.add_filter("tojson", to_json);
    env.add_function("raise_exception", |words: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, show(&words)?).with_source(Raised))
    });
    env.add_function("strftime_now", strftime_now);
    env
}

/// A value as Python would print it, within the limits.
fn show(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut text = String::new();
    match value {
        _ if value.is_none() => text.push_str("None"),
        _ if value.kind() == minijinja::value::ValueKind::Bool => {
            text.push_str(if value.is_true() { "True" } else { "False" });
        }
        _ => write!(text, "{}", guard::check(value.clone())?)?,
    }
    Ok(text)
}

fn emit(out: &mut Output, _: &State, value: &Value) -> Result<(), Error> {
    let shown;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            shown = show(value)?;
            &shown
        }
    };
    guard::spend(text.len())?;
    Ok(out.write_str(text)?)
}

fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    let mut text = show(left)?;
    text.push_str(&show(right)?);
    guard::charge(Value::from(text))
}

fn join_filter(values: &Value, separator: Option<&str>, kwargs: Kwargs) -> Result<Value, Error> {
    let separator = separator.or(kwargs.get("d")?).unwrap_or("");
    let attribute = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    join(values, separator, attribute)
}

fn join(values: &Value, separator: &str, attribute: Option<&str>) -> Result<Value, Error> {
    let mut text = String::new();
    for (index, value) in values.try_iter()?.enumerate() {
        if index > 0 {
            text.push_str(separator);
        }
        match attribute {
            Some(name) => text.push_str(&show(&value.get_attr(name)?)?),
            None => text.push_str(&show(&value)?),
        }
        allow(Some(text.len()))?;
    }
    Ok(Value::from(text))
}

fn replace(text: &str, old: &str, new: &str, count: Option<i64>) -> Result<Value, Error> {
    let count = usize::try_from(count.unwrap_or(-1)).unwrap_or(usize::MAX);
    let hits = text.matches(old).count().min(count);
    allow(hits.checked_mul(new.len()).and_then(|grown| grown.checked_add(text.len())))?;
    Ok(Value::from(text.replacen(old, new, count)))
}

fn indent(state: &State, text: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let text = show(text)?;
    let width = args.first().and_then(Value::as_usize).unwrap_or(0).max(4);
    if width > MAX_INDENT || args.iter().any(|arg| arg.as_object().is_some()) {
        return Err(Error::new(ErrorKind::InvalidOperation, "indent: unsupported arguments"));
    }
    allow(text.lines().count().checked_mul(width).and_then(|n| n.checked_add(text.len())))?;
    let (width, first, blank) = from_args(&args)?;
    let text = Value::from(text);
    let text = minijinja::value::StringInput::new(state, &text)?;
    let none = Kwargs::from_iter(std::iter::empty::<(&str, Value)>());
    minijinja::filters::indent(text, width, first, blank, none)
}

fn map(state: &State, values: Value, args: Rest<Value>) -> Result<Value, Error> {
    let Some(name) = args.first().and_then(Value::as_str) else {
        return minijinja::filters::map(state, values, args).map(Value::from);
    };
    let mut mapped = Vec::new();
    for value in values.try_iter()? {
        let call: Vec<Value> = std::iter::once(value).chain(args[1..].iter().cloned()).collect();
        mapped.push(guard::charge(state.apply_filter(name, &call)?)?);
    }
    Ok(Value::from(mapped))
}

/// Python's methods on strings, lists and dicts.
fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (name, value.as_str()) {
        ("replace", Some(text)) => {
            let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
            replace(text, old, new, count)
        }
        ("join", Some(separator)) => {
            let (values,): (&Value,) = from_args(args)?;
            join(values, separator, None)
        }
        ("format", Some(_)) => Err(Error::from(ErrorKind::UnknownMethod)),
        ("count", Some(text)) if args.first().and_then(Value::as_str) == Some("") => {
            Ok(Value::from(text.chars().count() + 1))
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// JSON as Python's json module writes it; without HTML escapes, as model makers expect.
fn to_json(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = indent.or(kwargs.get("indent")?);
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    if ascii == Some(true) || indent.is_some_and(|width| width > MAX_INDENT) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: unsupported arguments"));
    }
    guard::check(value.clone())?;
    let mut json = Vec::new();
    let written = match indent {
        Some(width) => {
            let spaces = " ".repeat(width);
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, pretty))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut json, Spaced)),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    String::from_utf8(json)
        .map(Value::from)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// A space after each comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
    ) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: unknown format"))?;
    Ok(text)
}
