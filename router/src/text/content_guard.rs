//! Keeps special-token text in what users write from becoming special tokens.
//!
//! Before a template is rendered, every occurrence of a special token's text in the messages is broken by a character
//! that occurs nowhere in them. What the rendered text then still holds in one piece was written by the template; it is
//! replaced by names that nobody can guess, the marks are removed, and a second tokenizer, which differs from the model's only
//! in knowing its special tokens by those names, encodes the result. Text that needs no marks, which is nearly all,
//! goes to the model's own tokenizer, so its ids are those of `transformers`.

use std::path::Path;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;
use tokenizers::Tokenizer;

use super::{ChatMessage, ChatOptions, TextError};

/// Noncharacters: legal in a string, meaningless in any text, and untouched by normalizers.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// A rendered prompt that remembers which special-token text is only text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    text: String,
    mark: Option<char>,
}

/// The special tokens of one tokenizer, and the tokenizer that knows them by other names.
#[derive(Debug)]
pub(super) struct ContentGuard {
    specials: Vec<String>,
    names: Vec<String>,
    overlapping: AhoCorasick,
    longest: AhoCorasick,
    renamed: Tokenizer,
}

impl RenderedChat {
    /// The prompt as text.
    #[must_use]
    pub fn text(&self) -> String {
        match self.mark {
            None => self.text.clone(),
            Some(mark) => self.text.replace(mark, ""),
        }
    }
}

impl ContentGuard {
    /// `file` is the content of `tokenizer.json`; `nonce` makes the new names unguessable.
    pub(super) fn new(
        path: &Path,
        file: &[u8],
        tokenizer: &Tokenizer,
        nonce: u128,
    ) -> Result<Self, TextError> {
        let malformed = |detail: String| TextError::Malformed {
            path: path.to_path_buf(),
            detail,
        };
        let mut specials: Vec<String> = tokenizer
            .get_added_tokens_decoder()
            .into_values()
            .filter(|token| token.special && !token.content.is_empty())
            .map(|token| token.content)
            .collect();
        specials.sort();
        let names: Vec<String> = (0..specials.len())
            .map(|index| format!("\u{10FFFE}{nonce:032x}.{index}\u{10FFFE}"))
            .collect();

        let mut json: Value = serde_json::from_slice(file).map_err(|error| malformed(error.to_string()))?;
        rename(&mut json, &specials, &names);
        let renamed = serde_json::to_vec(&json)
            .map_err(|error| malformed(error.to_string()))
            .and_then(|bytes| Tokenizer::from_bytes(bytes).map_err(|error| malformed(error.to_string())))?;
        for (special, name) in specials.iter().zip(&names) {
            if tokenizer.token_to_id(special) != renamed.token_to_id(name) {
                return Err(malformed(format!(
                    "the special token {special:?} cannot be told from its text"
                )));
            }
        }
        let build = |kind| {
            AhoCorasick::builder()
                .match_kind(kind)
                .build(&specials)
                .map_err(|error| malformed(error.to_string()))
        };
        Ok(Self {
            overlapping: build(MatchKind::Standard)?,
            longest: build(MatchKind::LeftmostLongest)?,
            specials,
            names,
            renamed,
        })
    }

    /// Marks what has to stay text in everything that the client wrote.
    pub(super) fn protect(
        &self,
        messages: &mut [ChatMessage],
        options: &mut ChatOptions,
    ) -> Result<Option<char>, TextError> {
        let mut texts: Vec<&mut String> = Vec::new();
        for message in messages {
            texts.push(&mut message.content);
            texts.extend(message.name.as_mut());
        }
        for (_, value) in &mut options.variables {
            strings(value, &mut texts);
        }
        let breaks: Vec<Vec<usize>> = texts.iter().map(|text| self.breaks(text)).collect();
        if breaks.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        let mark = MARKS
            .into_iter()
            .find(|mark| !texts.iter().any(|text| text.contains(*mark)))
            .ok_or(TextError::Unmarkable)?;
        for (text, breaks) in texts.into_iter().zip(breaks) {
            for position in breaks.into_iter().rev() {
                text.insert(position, mark);
            }
        }
        Ok(Some(mark))
    }

    pub(super) fn rendered(text: String, mark: Option<char>) -> RenderedChat {
        // A template may have dropped all that was marked.
        let mark = mark.filter(|mark| text.contains(*mark));
        RenderedChat { text, mark }
    }

    /// The ids of a rendered prompt. `tokenizer` is the model's own.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, chat: &RenderedChat) -> Result<Vec<u32>, TextError> {
        let encoded = match chat.mark {
            None => tokenizer.encode_fast(chat.text.as_str(), false),
            Some(mark) => {
                let named = self
                    .longest
                    .replace_all(&chat.text, &self.names)
                    .replace(mark, "");
                self.renamed.encode_fast(named, false)
            }
        };
        encoded
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TextError::Tokenizer(error.to_string()))
    }

    /// Byte positions, ascending, at which `text` has to be broken. A text that begins with the end of a special token,
    /// or ends with the beginning of one, is broken there too: its neighbour in the template could complete it.
    fn breaks(&self, text: &str) -> Vec<usize> {
        let first_char = |special: &str| special.chars().next().map_or(0, char::len_utf8);
        let mut breaks: Vec<usize> = self
            .overlapping
            .find_overlapping_iter(text)
            .map(|found| found.start() + first_char(&self.specials[found.pattern().as_usize()]))
            .collect();
        for special in &self.specials {
            let inner = special.char_indices().map(|(index, _)| index).skip(1);
            for cut in inner {
                if text.starts_with(&special[cut..]) {
                    breaks.push(0);
                }
                if text.ends_with(&special[..cut]) {
                    breaks.push(text.len());
                }
            }
        }
        breaks.sort_unstable();
        breaks.dedup();
        breaks
    }
}

fn strings<'a>(value: &'a mut Value, found: &mut Vec<&'a mut String>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(values) => values.iter_mut().for_each(|value| strings(value, found)),
        Value::Object(fields) => fields.iter_mut().for_each(|(_, value)| strings(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Gives the special tokens their new names wherever `tokenizer.json` defines a token. The post-processor goes: prompts
/// that a template rendered are encoded without it.
fn rename(json: &mut Value, specials: &[String], names: &[String]) {
    let new_name = |old: &str| {
        specials
            .binary_search_by(|special| special.as_str().cmp(old))
            .ok()
            .map(|at| &names[at])
    };
    let replace = |value: Option<&mut Value>| {
        if let Some(Value::String(text)) = value
            && let Some(name) = new_name(text)
        {
            text.clone_from(name);
        }
    };
    json["post_processor"] = Value::Null;
    for token in json["added_tokens"].as_array_mut().into_iter().flatten() {
        replace(token.get_mut("content"));
    }
    let model = &mut json["model"];
    replace(model.get_mut("unk_token"));
    match model.get_mut("vocab") {
        Some(Value::Object(vocabulary)) => {
            for (special, name) in specials.iter().zip(names) {
                if let Some(id) = vocabulary.remove(special) {
                    vocabulary.insert(name.clone(), id);
                }
            }
        }
        Some(Value::Array(pieces)) => pieces.iter_mut().for_each(|piece| replace(piece.get_mut(0))),
        _ => {}
    }
}
