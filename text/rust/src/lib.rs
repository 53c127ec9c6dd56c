//! Tokenizer and chat template behind the C interface of `pdserve_text.h`.
//! One `Text` per model: immutable after loading and safe from any thread.
mod chat;
mod ffi;
mod guard;
mod hf;
mod pretokenizer;
mod template;
mod tokenizer;
mod vocabulary;

use tokenizer::Tokenizer;

/// What a caller did wrong, in words that may be shown to it.
pub type Fallible<T> = Result<T, String>;

/// The longest text, messages or template that is looked at, in bytes.
pub const MAX_TEXT_BYTES: usize = 64 << 20;

pub struct Text {
    pub tokenizer: Tokenizer,
    pub template: Option<template::ChatTemplate>,
}

impl Text {
    pub fn load(spec: &[u8]) -> Fallible<Text> {
        let (tokenizer, source) = match vocabulary::Spec::parse(spec)? {
            vocabulary::Spec::Gguf(spec) => Tokenizer::of_gguf(spec)?,
            vocabulary::Spec::Hf(spec) => hf::load(spec)?,
        };
        let template = match source {
            Some(source) => Some(template::ChatTemplate::compile(&source, &tokenizer.vocabulary)?),
            None => None,
        };
        Ok(Text { tokenizer, template })
    }
}
