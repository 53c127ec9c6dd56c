//! Text to token ids: control tokens, then words, then byte-pair merges.
use crate::hf::HfWords;
use crate::pretokenizer::Pretokenizer;
use crate::vocabulary::{byte_alphabet, shorten, GgufSpec, Kind, Vocabulary};
use crate::{Fallible, MAX_TEXT_BYTES};
use ahash::AHashMap;
use aho_corasick::{AhoCorasick, MatchKind};
use std::collections::HashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::Model;

/// Words remembered per thread.
const CACHED_WORDS: usize = 10_000;

/// Finds tokens that are never split, the longest first.
pub struct Finder {
    automaton: AhoCorasick,
    ids: Vec<u32>,
    strips: HashMap<u32, Strip>,
}

/// Whether a token takes the white space beside it.
#[derive(Clone, Copy, Default)]
pub struct Strip {
    pub left: bool,
    pub right: bool,
}

impl Finder {
    pub fn new(
        vocabulary: &Vocabulary,
        kinds: &[Kind],
        strips: HashMap<u32, Strip>,
    ) -> Fallible<Finder> {
        let ids: Vec<u32> = kinds.iter().flat_map(|&kind| vocabulary.of_kind(kind)).collect();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|&id| &vocabulary.spelling[id as usize]))
            .map_err(|e| format!("special tokens: {e}"))?;
        Ok(Finder { automaton, ids, strips })
    }

    /// Calls `each` in order for every token found and every non-empty text between two.
    pub fn split<'t>(
        &self,
        text: &'t str,
        mut each: impl FnMut(Segment<'t>) -> Fallible<()>,
    ) -> Fallible<()> {
        let mut done = 0;
        for hit in self.automaton.find_iter(text) {
            let id = self.ids[hit.pattern().as_usize()];
            let strip = self.strips.get(&id).copied().unwrap_or_default();
            let mut between = &text[done.min(hit.start())..hit.start()];
            if strip.left {
                between = between.trim_end();
            }
            if !between.is_empty() {
                each(Segment::Text(between))?;
            }
            each(Segment::Token(id))?;
            done = hit.end();
            if strip.right {
                done = text.len() - text[done..].trim_start().len();
            }
        }
        if done < text.len() {
            each(Segment::Text(&text[done..]))?;
        }
        Ok(())
    }
}

pub enum Segment<'t> {
    Text(&'t str),
    Token(u32),
}

pub struct Tokenizer {
    pub vocabulary: Vocabulary,
    /// Control and user-defined tokens.
    pub all_special: Finder,
    /// What is found even where control tokens are not to be parsed.
    pub user_defined: Finder,
    pub words: Words,
    /// What add_special puts around a text.
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    /// What a chat begins with where the template has not written it.
    pub chat_bos: Option<u32>,
}

/// How the text between control tokens becomes ids.
pub enum Words {
    Bpe(Pretokenizer, Box<BPE>),
    Hf(Box<HfWords>),
}

impl Tokenizer {
    /// The tokenizer, and the chat template's source where there is one.
    pub fn of_gguf(mut spec: GgufSpec) -> Fallible<(Tokenizer, Option<String>)> {
        let model = spec.model.as_deref().ok_or("tokenizer spec names no model")?;
        if model != "gpt2" {
            return Err(format!("tokenizer model '{}' is not supported", shorten(model)));
        }
        let pre = spec.pre.as_deref().ok_or("tokenizer spec names no pre-tokenizer")?;
        let pretokenizer = Pretokenizer::by_name(pre)?;
        let vocabulary = Vocabulary::of_gguf(&mut spec)?;
        let merges = spec.merges.take().ok_or("tokenizer spec has no merges")?;
        let bpe = build_bpe(&vocabulary, merges, pretokenizer.whole_words())?;
        let add_bos = spec.add_bos.unwrap_or(pretokenizer.add_bos());
        let add_eos = spec.add_eos.unwrap_or(false);
        if (add_bos && vocabulary.bos.is_none()) || (add_eos && vocabulary.eos.is_none()) {
            return Err("tokenizer spec adds a BOS or EOS token that it does not name".into());
        }
        let bos = vocabulary.bos.filter(|_| add_bos);
        let none = HashMap::new;
        let tokenizer = Tokenizer {
            all_special: Finder::new(&vocabulary, &[Kind::Control, Kind::UserDefined], none())?,
            user_defined: Finder::new(&vocabulary, &[Kind::UserDefined], none())?,
            words: Words::Bpe(pretokenizer, Box::new(bpe)),
            prefix: bos.into_iter().collect(),
            suffix: vocabulary.eos.filter(|_| add_eos).into_iter().collect(),
            chat_bos: bos,
            vocabulary,
        };
        Ok((tokenizer, spec.chat_template.take()))
    }

    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Fallible<Vec<u32>> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("a text of {} bytes is over the limit", text.len()));
        }
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        if add_special {
            ids.extend(&self.prefix);
        }
        let finder = if parse_special { &self.all_special } else { &self.user_defined };
        finder.split(text, |segment| match segment {
            Segment::Token(id) => {
                ids.push(id);
                Ok(())
            }
            Segment::Text(text) => self.encode_words(text, &mut ids),
        })?;
        if add_special {
            ids.extend(&self.suffix);
        }
        Ok(ids)
    }

    /// Appends a text in which control tokens are ordinary characters.
    pub fn encode_ordinary(&self, text: &str, ids: &mut Vec<u32>) -> Fallible<()> {
        self.user_defined.split(text, |segment| match segment {
            Segment::Token(id) => {
                ids.push(id);
                Ok(())
            }
            Segment::Text(text) => self.encode_words(text, ids),
        })
    }

    /// BOS where the model wants it and the template has not written it.
    pub fn begin_chat(&self, ids: &mut Vec<u32>) {
        if let Some(bos) = self.chat_bos {
            if ids.first() != Some(&bos) {
                ids.insert(0, bos);
            }
        }
    }

    fn encode_words(&self, text: &str, ids: &mut Vec<u32>) -> Fallible<()> {
        match &self.words {
            Words::Hf(words) => words.encode(text, &self.vocabulary, ids),
            Words::Bpe(pretokenizer, bpe) => spell_words(pretokenizer, text, &mut |word| {
                // A byte without a token is dropped by the model.
                let tokens = bpe.tokenize(word).map_err(|e| format!("tokenizer: {e}"))?;
                ids.extend(tokens.iter().map(|token| token.id));
                Ok(())
            }),
        }
    }
}

/// The words of a text, each in the byte-level alphabet.
pub fn spell_words(
    pretokenizer: &Pretokenizer,
    text: &str,
    take: &mut dyn FnMut(&str) -> Fallible<()>,
) -> Fallible<()> {
    let alphabet = byte_alphabet();
    let mut spelt = String::new();
    pretokenizer.split(text, &mut |word| {
        spelt.clear();
        spelt.extend(word.bytes().map(|byte| alphabet[byte as usize]));
        take(&spelt)
    })
}

fn build_bpe(vocabulary: &Vocabulary, merges: Vec<String>, whole_words: bool) -> Fallible<BPE> {
    let mut ids = AHashMap::with_capacity(vocabulary.spelling.len());
    let mut longest = 0;
    for (id, token) in vocabulary.spelling.iter().enumerate() {
        // Where words are taken whole, the text of a control token must not come out as one.
        let hidden = whole_words && vocabulary.kinds[id] == Kind::Control;
        if token.is_empty() || hidden {
            continue;
        }
        longest = longest.max(token.len());
        if ids.insert(token.clone(), id as u32).is_some() {
            return Err(format!("token '{}' appears twice", shorten(token)));
        }
    }
    let mut pairs = Vec::with_capacity(merges.len());
    for (line, merge) in merges.iter().enumerate() {
        let pair = merge.split_once(' ').filter(|(a, b)| {
            // The builder trusts that no merge is longer than the longest token.
            !a.is_empty() && !b.is_empty() && !b.contains(' ') && a.len() + b.len() <= longest
        });
        let (a, b) = pair.ok_or_else(|| format!("merge {line} is malformed"))?;
        pairs.push((a.to_owned(), b.to_owned()));
    }
    BPE::builder()
        .vocab_and_merges(ids, pairs)
        .ignore_merges(whole_words)
        .cache_capacity(CACHED_WORDS)
        .build()
        .map_err(|e| format!("merges do not fit the vocabulary: {}", shorten(&e.to_string())))
}
