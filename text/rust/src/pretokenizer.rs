//! How a text falls into words before any merging: a GGUF carries only the name of the rule.
use crate::vocabulary::shorten;
use crate::Fallible;
use regex::Regex;

// Each pattern is written without its last lookahead, `\s+(?!\S)`, so that a linear-time matcher
// can run it; `words` puts it back: a run of white space leaves its last character to the word
// that follows.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);

struct Rule {
    names: &'static [&'static str],
    pattern: &'static str,
    /// Every numeric character is a word of its own, split off before the pattern runs.
    lone_digits: bool,
    /// In this pattern a word may end in line breaks, and such a word keeps them all.
    keeps_line_ends: bool,
    /// A word that is in the vocabulary is taken whole, whatever the merges say.
    whole_words: bool,
    /// Whether a model of this family begins with BOS where its file does not say.
    add_bos: bool,
}

const PLAIN: Rule = Rule {
    names: &["gpt-2", "phi-2", "mpt", "olmo", "jais"],
    pattern: GPT2,
    lone_digits: false,
    keeps_line_ends: false,
    whole_words: false,
    add_bos: false,
};

const RULES: &[Rule] = &[
    PLAIN,
    Rule { names: &["smollm", "starcoder", "refact", "codeshell"], lone_digits: true, ..PLAIN },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: LLAMA3,
        keeps_line_ends: true,
        whole_words: true,
        add_bos: true,
        ..PLAIN
    },
    Rule { names: &["dbrx", "smaug-bpe"], pattern: LLAMA3, keeps_line_ends: true, ..PLAIN },
    Rule {
        names: &["qwen2", "stablelm2", "megrez"],
        pattern: QWEN2,
        keeps_line_ends: true,
        ..PLAIN
    },
];

pub struct Pretokenizer {
    rule: &'static Rule,
    pattern: Regex,
    numeric: Regex,
}

impl Pretokenizer {
    /// Refuses a name that is not in the table: a wrong split is a silent loss of quality.
    pub fn by_name(name: &str) -> Fallible<Pretokenizer> {
        let rule = RULES
            .iter()
            .find(|rule| rule.names.contains(&name))
            .ok_or_else(|| format!("unknown pre-tokenizer '{}'", shorten(name)))?;
        Pretokenizer::new(rule)
    }

    /// The rule that a tokenizer.json writes out as this pattern, where it is one of the table's.
    pub fn by_pattern(pattern: &str, lone_digits: bool) -> Fallible<Option<Pretokenizer>> {
        let full = pattern.replace(r"|\s+(?!\S)|\s+", r"|\s+");
        let is_known = |rule: &&Rule| rule.pattern == full && rule.lone_digits == lone_digits;
        RULES.iter().find(is_known).map(Pretokenizer::new).transpose()
    }

    /// GPT-2's, which a tokenizer.json leaves unwritten.
    pub fn plain(lone_digits: bool) -> Fallible<Option<Pretokenizer>> {
        Pretokenizer::by_pattern(GPT2, lone_digits)
    }

    fn new(rule: &'static Rule) -> Fallible<Pretokenizer> {
        let compile = |pattern| Regex::new(pattern).map_err(|e| e.to_string());
        Ok(Pretokenizer { rule, pattern: compile(rule.pattern)?, numeric: compile(r"\p{N}")? })
    }

    pub fn whole_words(&self) -> bool {
        self.rule.whole_words
    }

    pub fn add_bos(&self) -> bool {
        self.rule.add_bos
    }

    /// Calls `take` for each word in order; together the words are the text.
    pub fn split(&self, text: &str, take: &mut dyn FnMut(&str) -> Fallible<()>) -> Fallible<()> {
        if !self.rule.lone_digits {
            return self.words(text, take);
        }
        let mut done = 0;
        for digit in self.numeric.find_iter(text) {
            self.words(&text[done..digit.start()], take)?;
            take(digit.as_str())?;
            done = digit.end();
        }
        self.words(&text[done..], take)
    }

    fn words(&self, text: &str, take: &mut dyn FnMut(&str) -> Fallible<()>) -> Fallible<()> {
        let mut done = 0;
        while done < text.len() {
            let Some(word) = self.pattern.find_at(text, done) else { break };
            if word.start() > done {
                take(&text[done..word.start()])?;
            }
            let end = word.end() - self.left_to_the_next(word.as_str(), word.end() == text.len());
            take(&text[word.start()..end])?;
            done = end;
        }
        if done < text.len() {
            take(&text[done..])?;
        }
        Ok(())
    }

    /// Bytes of the last character, where it is white space that belongs to the next word.
    fn left_to_the_next(&self, word: &str, at_end: bool) -> usize {
        let Some(last) = word.chars().next_back() else { return 0 };
        let kept = self.rule.keeps_line_ends && matches!(last, '\r' | '\n');
        let alone = last.len_utf8() == word.len();
        if at_end || alone || kept || !last.is_whitespace() {
            return 0;
        }
        last.len_utf8()
    }
}
