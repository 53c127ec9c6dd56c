//! Messages to token ids, such that only the template can write control tokens.
//!
//! In every string of the messages, each control token's text (and a start of one at the string's
//! end, which a neighbour could complete) is replaced by a mark: one private-use character that
//! occurs nowhere else. Control tokens are then looked for in the rendered text, where no match
//! can hold a mark, and the marks give their texts back to the stretches between, which are
//! tokenised as ordinary characters.
use crate::template::ChatTemplate;
use crate::tokenizer::{Segment, Tokenizer};
use crate::{Fallible, Text, MAX_TEXT_BYTES};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

impl Text {
    pub fn render_chat(&self, messages: &[u8], add_generation_prompt: bool) -> Fallible<String> {
        let template = self.chat_template()?;
        template.render(&parse(messages)?, messages.len(), add_generation_prompt)
    }

    pub fn encode_chat(&self, messages: &[u8], add_generation_prompt: bool) -> Fallible<Vec<u32>> {
        let template = self.chat_template()?;
        let mut parsed = parse(messages)?;
        let mut marks = Marks::new(&self.tokenizer, template);
        marks.reserve(&parsed);
        marks.mark(&mut parsed)?;
        let text = template
            .render(&parsed, messages.len(), add_generation_prompt)
            .map_err(|words| marks.restore(&words))?;
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        self.tokenizer.all_special.split(&text, |segment| match segment {
            Segment::Token(id) => {
                ids.push(id);
                Ok(())
            }
            Segment::Text(text) => self.tokenizer.encode_ordinary(&marks.restore(text), &mut ids),
        })?;
        self.tokenizer.begin_chat(&mut ids);
        Ok(ids)
    }

    fn chat_template(&self) -> Fallible<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| "the model has no chat template".to_string())
    }
}

fn parse(messages: &[u8]) -> Fallible<Value> {
    if messages.len() > MAX_TEXT_BYTES {
        return Err(format!("messages of {} bytes are over the limit", messages.len()));
    }
    let parsed: Value =
        serde_json::from_slice(messages).map_err(|e| format!("messages are malformed: {e}"))?;
    match parsed.is_array() {
        true => Ok(parsed),
        false => Err("messages must be an array".into()),
    }
}

fn is_private(c: char) -> bool {
    matches!(c, '\u{f0000}'..='\u{ffffd}' | '\u{100000}'..='\u{10fffd}')
}

struct Marks<'t> {
    /// Texts of the control tokens, the longest first.
    tokens: Vec<&'t str>,
    /// Which bytes a token starts with.
    starts: [bool; 256],
    taken: HashSet<char>,
    unused: Box<dyn Iterator<Item = char>>,
    texts: HashMap<char, String>,
    marks: HashMap<String, char>,
}

impl<'t> Marks<'t> {
    fn new(tokenizer: &'t Tokenizer, template: &ChatTemplate) -> Marks<'t> {
        let vocabulary = &tokenizer.vocabulary;
        let tokens: Vec<&str> =
            vocabulary.control.iter().map(|&id| &*vocabulary.spelling[id as usize]).collect();
        let mut starts = [false; 256];
        tokens.iter().for_each(|token| starts[token.as_bytes()[0] as usize] = true);
        let mut taken: HashSet<char> =
            template.source().chars().filter(|&c| is_private(c)).collect();
        taken.extend(tokens.iter().flat_map(|token| token.chars()).filter(|&c| is_private(c)));
        let unused = Box::new(('\u{f0000}'..='\u{10fffd}').filter(|&c| is_private(c)));
        Marks { tokens, starts, taken, unused, texts: HashMap::new(), marks: HashMap::new() }
    }

    /// Keeps the private-use characters that the messages hold out of use as marks.
    fn reserve(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.taken.extend(text.chars().filter(|&c| is_private(c))),
            Value::Array(items) => items.iter().for_each(|item| self.reserve(item)),
            Value::Object(fields) => fields.iter().for_each(|(key, field)| {
                self.taken.extend(key.chars().filter(|&c| is_private(c)));
                self.reserve(field);
            }),
            _ => {}
        }
    }

    fn mark(&mut self, value: &mut Value) -> Fallible<()> {
        match value {
            Value::String(text) => {
                if let Some(marked) = self.marked(text)? {
                    *text = marked;
                }
            }
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.mark(item))?,
            Value::Object(fields) => {
                for (key, mut field) in std::mem::take(fields) {
                    self.mark(&mut field)?;
                    fields.insert(self.marked(&key)?.unwrap_or(key), field);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The text with marks, where it needs any.
    fn marked(&mut self, text: &str) -> Fallible<Option<String>> {
        let mut out = String::new();
        let (mut done, mut at) = (0, 0);
        while let Some(skipped) =
            text.as_bytes()[at..].iter().position(|&b| self.starts[b as usize])
        {
            at += skipped;
            let rest = &text[at..];
            // What starts here: a whole token, or the start of one that the string's end cuts.
            let hit = self.tokens.iter().find_map(|token| {
                let cut = rest.len() < token.len() && token.starts_with(rest);
                (cut || rest.starts_with(token)).then(|| token.len().min(rest.len()))
            });
            let Some(length) = hit else {
                at += 1;
                continue;
            };
            out.push_str(&text[done..at]);
            out.push(self.mark_for(&rest[..length])?);
            at += length;
            done = at;
        }
        if done == 0 {
            return Ok(None);
        }
        out.push_str(&text[done..]);
        Ok(Some(out))
    }

    fn mark_for(&mut self, text: &str) -> Fallible<char> {
        if let Some(&mark) = self.marks.get(text) {
            return Ok(mark);
        }
        let taken = &self.taken;
        let mark = self.unused.find(|c| !taken.contains(c)).ok_or("too many private characters")?;
        self.marks.insert(text.to_owned(), mark);
        self.texts.insert(mark, text.to_owned());
        Ok(mark)
    }

    fn restore(&self, text: &str) -> String {
        if self.texts.is_empty() {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match self.texts.get(&c) {
                Some(original) => out.push_str(original),
                None => out.push(c),
            }
        }
        out
    }
}
