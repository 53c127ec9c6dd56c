//! The tokenizer's description as it arrives, checked; and the vocabulary as flat arrays.
use crate::Fallible;
use serde::Deserialize;

const MAX_SPEC_BYTES: usize = 256 << 20;
/// Offsets and ids are 32 bits; no vocabulary comes near.
const MAX_TOKENS: usize = 1 << 24;

pub enum Spec {
    Gguf(GgufSpec),
    Hf(HfSpec),
}

#[derive(Deserialize)]
struct Head {
    kind: String,
}

/// A tokenizer.json, whole, and what other files of its folder say.
#[derive(Deserialize)]
pub struct HfSpec {
    pub tokenizer: String,
    pub vocab_size: usize,
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub unk: Option<String>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub chat_template: Option<String>,
}

#[derive(Deserialize)]
pub struct GgufSpec {
    pub model: Option<String>,
    pub pre: Option<String>,
    tokens: Option<Vec<String>>,
    token_types: Option<Vec<i64>>,
    pub merges: Option<Vec<String>>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    bos: Option<i64>,
    eos: Option<i64>,
    unk: Option<i64>,
    pub chat_template: Option<String>,
}

impl Spec {
    pub fn parse(json: &[u8]) -> Fallible<Spec> {
        if json.len() > MAX_SPEC_BYTES {
            return Err(format!("tokenizer spec of {} bytes is over the limit", json.len()));
        }
        let malformed = |e| format!("tokenizer spec is malformed: {e}");
        let head: Head = serde_json::from_slice(json).map_err(malformed)?;
        match head.kind.as_str() {
            "gguf" => serde_json::from_slice(json).map(Spec::Gguf).map_err(malformed),
            "hf" => serde_json::from_slice(json).map(Spec::Hf).map_err(malformed),
            other => Err(format!("tokenizer spec of unknown kind '{}'", shorten(other))),
        }
    }
}

/// At most 64 characters of what somebody sent, to be quoted in an error.
pub fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Ordinary = 0,
    /// Steers the model; found in a text only where that is asked for; hidden with skip_special.
    Control = 1,
    /// Added by the model's maker; found in every text, never split.
    UserDefined = 2,
}

/// How a file spells the bytes of ordinary tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// In the byte-level alphabet.
    ByteLevel,
    /// As text with U+2581 for a space, and <0xNN> for a single byte.
    SentencePiece,
}

pub struct Vocabulary {
    /// The tokens as the file spells them.
    pub spelling: Vec<String>,
    pub kinds: Vec<Kind>,
    /// The control tokens, those of the longest text first.
    pub control: Vec<u32>,
    /// Token i's bytes are bytes[offsets[i]..offsets[i + 1]].
    pub bytes: Vec<u8>,
    pub offsets: Vec<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
}

impl Vocabulary {
    pub fn of_gguf(spec: &mut GgufSpec) -> Fallible<Vocabulary> {
        let spelling = spec.tokens.take().ok_or("tokenizer spec has no tokens")?;
        check_size(spelling.len())?;
        let kinds = kinds(spec.token_types.take(), spelling.len())?;
        let id = |value: Option<i64>, name: &str| match value {
            None => Ok(None),
            Some(v) if v >= 0 && (v as u64) < spelling.len() as u64 => Ok(Some(v as u32)),
            Some(v) => Err(format!("{name} token {v} is outside the vocabulary")),
        };
        let (bos, eos, unk) = (id(spec.bos, "bos")?, id(spec.eos, "eos")?, id(spec.unk, "unk")?);
        Ok(Vocabulary { bos, eos, unk, ..Vocabulary::new(spelling, kinds, Spelling::ByteLevel)? })
    }

    /// Without BOS, EOS and UNK.
    pub fn new(spelling: Vec<String>, kinds: Vec<Kind>, rule: Spelling) -> Fallible<Vocabulary> {
        let (bytes, offsets) = flatten(&spelling, &kinds, rule)?;
        let (bos, eos, unk, control) = (None, None, None, Vec::new());
        let mut made = Vocabulary { bos, eos, unk, spelling, kinds, control, bytes, offsets };
        made.control = made.of_kind(Kind::Control).collect();
        let lengths = &made.spelling;
        made.control.sort_by_key(|&id| std::cmp::Reverse(lengths[id as usize].len()));
        Ok(made)
    }

    /// The ids of one kind whose text is not empty.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = u32> + '_ {
        (0..self.kinds.len())
            .filter(move |&i| self.kinds[i] == kind && !self.spelling[i].is_empty())
            .map(|i| i as u32)
    }
}

/// GGUF's numbers: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
fn kinds(types: Option<Vec<i64>>, count: usize) -> Fallible<Vec<Kind>> {
    let Some(types) = types else { return Ok(vec![Kind::Ordinary; count]) };
    if types.len() != count {
        return Err(format!("{} token types for {count} tokens", types.len()));
    }
    types
        .iter()
        .map(|t| match t {
            1 | 5 | 6 => Ok(Kind::Ordinary),
            2 | 3 => Ok(Kind::Control),
            4 => Ok(Kind::UserDefined),
            other => Err(format!("unknown token type {other}")),
        })
        .collect()
}

pub fn check_size(tokens: usize) -> Fallible<()> {
    match tokens {
        1..=MAX_TOKENS => Ok(()),
        _ => Err(format!("a vocabulary of {tokens} tokens is not supported")),
    }
}

fn flatten(spelling: &[String], kinds: &[Kind], rule: Spelling) -> Fallible<(Vec<u8>, Vec<u32>)> {
    let values = byte_values();
    let mut bytes = Vec::with_capacity(spelling.iter().map(String::len).sum());
    let mut offsets = Vec::with_capacity(spelling.len() + 1);
    offsets.push(0);
    for (token, kind) in spelling.iter().zip(kinds) {
        let start = bytes.len();
        match (*kind, rule) {
            (Kind::Ordinary, Spelling::ByteLevel) => {
                let known = |c: char| values.get(c as usize).copied().flatten();
                bytes.extend(token.chars().map_while(known));
                // Not spelt in the alphabet throughout: the token is its own text.
                if bytes.len() - start != token.chars().count() {
                    bytes.truncate(start);
                    bytes.extend_from_slice(token.as_bytes());
                }
            }
            (Kind::Ordinary, Spelling::SentencePiece) => match lone_byte(token) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(token.replace('\u{2581}', " ").as_bytes()),
            },
            _ => bytes.extend_from_slice(token.as_bytes()),
        }
        let end = u32::try_from(bytes.len()).map_err(|_| "the vocabulary's text is too large")?;
        offsets.push(end);
    }
    Ok((bytes, offsets))
}

/// The byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes, in their
/// order, for U+0100 and up.
pub fn byte_alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let itself = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let point = if itself { byte as u32 } else { next };
        next += u32::from(!itself);
        char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// The byte that a token like <0x0A> stands for.
fn lone_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

fn byte_values() -> [Option<u8>; 0x144] {
    let mut values = [None; 0x144];
    for (byte, c) in byte_alphabet().into_iter().enumerate() {
        values[c as usize] = Some(byte as u8);
    }
    values
}
