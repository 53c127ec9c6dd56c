//! A tokenizer.json, as Hugging Face folders have it: its own normalizer, pre-tokenizer and model
//! between the added tokens, which we find ourselves, so that control tokens count only where they
//! may.
use crate::pretokenizer::Pretokenizer;
use crate::tokenizer::{spell_words, Finder, Strip, Tokenizer, Words};
use crate::vocabulary::{check_size, shorten, HfSpec, Kind, Spelling, Vocabulary};
use crate::Fallible;
use serde::Deserialize;
use serde_json::{json, Value};
use std::collections::HashMap;
use tokenizers::tokenizer::{Encoding, Model, Normalizer, PostProcessor, PreTokenizer, Token};
use tokenizers::{NormalizedString, OffsetType, PreTokenizedString};

/// The crate's own pipeline takes some 50 bytes for each of a text.
const MAX_PIPELINE_BYTES: usize = 8 << 20;
const MODELS: &[&str] = &["BPE", "Unigram", "WordPiece", "WordLevel"];
/// No token has it; stands for a text where we look at what is put around one.
const PROBE: u32 = u32::MAX;

pub struct HfWords {
    file: tokenizers::Tokenizer,
    /// Our own linear-time splitting, where the file's is one that we know.
    pretokenizer: Option<Pretokenizer>,
}

/// The parts of the file whose form says how to read the rest.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelForm,
}

#[derive(Deserialize)]
struct ModelForm {
    r#type: Option<String>,
}

pub fn load(spec: HfSpec) -> Fallible<(Tokenizer, Option<String>)> {
    check_size(spec.vocab_size)?;
    let fault = |e: &dyn std::fmt::Display| {
        format!("tokenizer.json: {}", shorten(&e.to_string().replace(['\n', '\r'], " ")))
    };
    let form: Form = serde_json::from_str(&spec.tokenizer).map_err(|e| fault(&e))?;
    if let Some(name) = form.model.r#type.as_deref().filter(|name| !MODELS.contains(name)) {
        return Err(format!("tokenizer.json: model type '{}' is not supported", shorten(name)));
    }
    let mut file =
        tokenizers::Tokenizer::from_bytes(spec.tokenizer.as_bytes()).map_err(|e| fault(&e))?;
    file.with_truncation(None).map_err(|e| fault(&e))?;
    file.with_padding(None);
    let (mut vocabulary, strips) =
        read_vocabulary(&file, spec.vocab_size, spelling(&form.decoder)?)?;
    let id = |name: &Option<String>| name.as_ref().and_then(|text| file.token_to_id(text));
    (vocabulary.bos, vocabulary.eos, vocabulary.unk) =
        (id(&spec.bos), id(&spec.eos), id(&spec.unk));
    let (mut prefix, mut suffix) = surroundings(&file).map_err(|e| fault(&e))?;
    if let (Some(add), Some(bos)) = (spec.add_bos, vocabulary.bos) {
        prefix.retain(|&id| id != bos);
        prefix.splice(0..0, add.then_some(bos));
    }
    if let (Some(add), Some(eos)) = (spec.add_eos, vocabulary.eos) {
        suffix.retain(|&id| id != eos);
        suffix.extend(add.then_some(eos));
    }
    if prefix.iter().chain(&suffix).any(|&id| id as usize >= spec.vocab_size) {
        return Err("tokenizer.json: the post-processor adds an id outside the vocabulary".into());
    }
    let pretokenizer = known_pretokenizer(&form)?;
    let tokenizer = Tokenizer {
        all_special: Finder::new(&vocabulary, &[Kind::Control, Kind::UserDefined], strips.clone())?,
        user_defined: Finder::new(&vocabulary, &[Kind::UserDefined], strips)?,
        words: Words::Hf(Box::new(HfWords { file, pretokenizer })),
        prefix,
        suffix,
        chat_bos: None, // templates of these folders write it themselves
        vocabulary,
    };
    Ok((tokenizer, spec.chat_template))
}

/// Tokens by id; what the embedding has beyond them is empty.
fn read_vocabulary(
    file: &tokenizers::Tokenizer,
    size: usize,
    rule: Spelling,
) -> Fallible<(Vocabulary, HashMap<u32, Strip>)> {
    let mut spelling = vec![String::new(); size];
    for (token, id) in file.get_vocab(true) {
        let place = spelling.get_mut(id as usize).ok_or_else(|| {
            let token = shorten(&token);
            format!("tokenizer.json: token '{token}' has the id {id}, the vocabulary {size} tokens")
        })?;
        *place = token;
    }
    let mut kinds = vec![Kind::Ordinary; size];
    let mut strips = HashMap::new();
    for (id, token) in file.get_added_tokens_decoder() {
        if token.single_word {
            return Err(format!(
                "tokenizer.json: single_word of token '{}' is not supported",
                shorten(&token.content)
            ));
        }
        if let Some(kind) = kinds.get_mut(id as usize) {
            *kind = if token.special { Kind::Control } else { Kind::UserDefined };
        }
        if token.lstrip || token.rstrip {
            strips.insert(id, Strip { left: token.lstrip, right: token.rstrip });
        }
    }
    Ok((Vocabulary::new(spelling, kinds, rule)?, strips))
}

/// The steps of a part that may be a sequence of them, as (type, step).
fn steps<'v>(part: &'v Value, list: &str) -> Vec<(&'v str, &'v Value)> {
    let name = |step: &'v Value| step["type"].as_str().unwrap_or("");
    match (name(part), part[list].as_array()) {
        ("Sequence", Some(steps)) => steps.iter().map(|step| (name(step), step)).collect(),
        _ if part.is_null() => Vec::new(),
        _ => vec![(name(part), part)],
    }
}

/// Which bytes a token stands for, from what the decoder would do with many of them.
fn spelling(decoder: &Value) -> Fallible<Spelling> {
    let steps = steps(decoder, "decoders");
    if steps.iter().any(|(name, _)| *name == "ByteLevel") {
        return Ok(Spelling::ByteLevel);
    }
    let space = json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "});
    let unknown = steps
        .iter()
        .find(|(name, step)| !matches!(*name, "ByteFallback" | "Fuse") && **step != space);
    match unknown {
        None if !steps.is_empty() => Ok(Spelling::SentencePiece),
        None => Err("tokenizer.json: has no decoder".into()),
        Some((name, _)) => {
            Err(format!("tokenizer.json: the decoder '{}' is not supported", shorten(name)))
        }
    }
}

/// One of our own rules, where the file spells it out and normalizes nothing.
fn known_pretokenizer(form: &Form) -> Fallible<Option<Pretokenizer>> {
    if !form.normalizer.is_null() {
        return Ok(None);
    }
    let steps = steps(&form.pre_tokenizer, "pretokenizers");
    let spells = |step: &Value, regex: bool| {
        step["add_prefix_space"] == false && step["use_regex"].as_bool().unwrap_or(true) == regex
    };
    match steps[..] {
        [("ByteLevel", last)] if spells(last, true) => Pretokenizer::plain(false),
        [("Digits", digits), ("ByteLevel", last)]
            if spells(last, true) && digits["individual_digits"] == true =>
        {
            Pretokenizer::plain(true)
        }
        [("Split", split), ("ByteLevel", last)]
            if spells(last, false)
                && split["behavior"] == "Isolated"
                && split["invert"].as_bool() != Some(true) =>
        {
            match split["pattern"]["Regex"].as_str() {
                Some(pattern) => Pretokenizer::by_pattern(pattern, false),
                None => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// What the post-processor puts before and after a text.
fn surroundings(file: &tokenizers::Tokenizer) -> tokenizers::Result<(Vec<u32>, Vec<u32>)> {
    let Some(processor) = file.get_post_processor() else { return Ok(Default::default()) };
    let text = Encoding::from_tokens(vec![Token::new(PROBE, "text".into(), (0, 4))], 0);
    let ids = processor.process(text, None, true)?.get_ids().to_vec();
    let at = ids.iter().position(|&id| id == PROBE).ok_or("the post-processor drops the text")?;
    Ok((ids[..at].to_vec(), ids[at + 1..].to_vec()))
}

impl HfWords {
    /// Appends the ids of a text without added tokens.
    pub fn encode(&self, text: &str, known: &Vocabulary, ids: &mut Vec<u32>) -> Fallible<()> {
        match &self.pretokenizer {
            Some(rule) => spell_words(rule, text, &mut |word| self.encode_word(word, known, ids)),
            None => self.run_pipeline(text, known, ids),
        }
    }

    fn encode_word(&self, word: &str, known: &Vocabulary, ids: &mut Vec<u32>) -> Fallible<()> {
        let tokens = self.file.get_model().tokenize(word).map_err(|e| format!("tokenizer: {e}"))?;
        let is_control = |token: &Token| is_control(known, token.id);
        let first = word.chars().next().map_or(0, char::len_utf8);
        if first < word.len() && tokens.iter().any(is_control) {
            // A word that is in the vocabulary as a control token, and taken whole.
            self.encode_word(&word[..first], known, ids)?;
            return self.encode_word(&word[first..], known, ids);
        }
        ids.extend(tokens.iter().filter(|token| !is_control(token)).map(|token| token.id));
        Ok(())
    }

    fn run_pipeline(&self, text: &str, known: &Vocabulary, ids: &mut Vec<u32>) -> Fallible<()> {
        if text.len() > MAX_PIPELINE_BYTES {
            return Err(format!("a text of {} bytes is over this tokenizer's limit", text.len()));
        }
        let encoding = self.pipeline(text).map_err(|e| format!("tokenizer: {e}"))?;
        if encoding.get_ids().iter().any(|&id| is_control(known, id)) {
            return Err("the text spells a control token".into());
        }
        ids.extend(encoding.get_ids());
        Ok(())
    }

    fn pipeline(&self, text: &str) -> tokenizers::Result<Encoding> {
        let mut words = PreTokenizedString::from(text);
        if let Some(normalizer) = self.file.get_normalizer() {
            words.normalize(|word: &mut NormalizedString| normalizer.normalize(word))?;
        }
        if let Some(pretokenizer) = self.file.get_pre_tokenizer() {
            pretokenizer.pre_tokenize(&mut words)?;
        }
        words.tokenize(|word| self.file.get_model().tokenize(word.get()))?;
        words.into_encoding(None, 0, OffsetType::None)
    }
}

/// What steers the model; the one token for what has none is harmless.
fn is_control(known: &Vocabulary, id: u32) -> bool {
    Some(id) != known.unk && known.kinds.get(id as usize) == Some(&Kind::Control)
}
