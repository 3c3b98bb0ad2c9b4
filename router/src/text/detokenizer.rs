//! Token ids to text, a token at a time, without ever showing half a character.
//!
//! The prefix/read offset method (as in TGI and vLLM): decoding is not a concatenation over tokens, so a window of recent
//! tokens is decoded with and without the new ones, and the difference is the new text. It is held while it ends in U+FFFD,
//! which is what an unfinished UTF-8 sequence decodes to.

use std::sync::Arc;

use super::{ModelText, TextError};

/// A held character is at most four bytes. Only broken output keeps a window open for so many tokens.
const LONGEST_HOLD: usize = 64;
/// Tokens of the prompt that the first window starts with, so that a decoder which strips the space at the start of a
/// text does not strip it from an answer.
const PROMPT_TAIL: usize = 5;

/// The text of one growing sequence of tokens.
#[derive(Debug)]
pub struct Detokenizer {
    text: Arc<ModelText>,
    skip_special: bool,
    /// Tokens from `prefix` on; what was before them is not needed again.
    window: Vec<u32>,
    /// How many of `window` have been delivered.
    read: usize,
    /// Length of the text of `window[..read]`.
    read_bytes: usize,
}

impl Detokenizer {
    /// Continues `prompt`, of which only the end matters.
    #[must_use]
    pub fn new(text: Arc<ModelText>, prompt: &[u32], skip_special: bool) -> Self {
        let tail = &prompt[prompt.len().saturating_sub(PROMPT_TAIL)..];
        let tail_text = text.decode(tail, skip_special).unwrap_or_default();
        // A prompt that ends inside a character cannot be a window's start.
        let window = if tail_text.ends_with(char::REPLACEMENT_CHARACTER) {
            Vec::new()
        } else {
            tail.to_vec()
        };
        Self {
            text,
            skip_special,
            read: window.len(),
            read_bytes: if window.is_empty() { 0 } else { tail_text.len() },
            window,
        }
    }

    /// The text that `ids` complete; empty while a character is unfinished.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if the tokenizer's decoder fails.
    pub fn push(&mut self, ids: &[u32]) -> Result<String, TextError> {
        let mut out = String::new();
        for id in ids {
            self.window.push(*id);
            let text = self.text.decode(&self.window, self.skip_special)?;
            let held = self.window.len() - self.read;
            if text.ends_with(char::REPLACEMENT_CHARACTER) && held < LONGEST_HOLD {
                continue;
            }
            self.deliver(&text, &mut out)?;
        }
        Ok(out)
    }

    /// What is still held, at the end of the sequence: an unfinished character shows as U+FFFD.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`] if the tokenizer's decoder fails.
    pub fn finish(&mut self) -> Result<String, TextError> {
        let mut out = String::new();
        if self.read < self.window.len() {
            let text = self.text.decode(&self.window, self.skip_special)?;
            self.deliver(&text, &mut out)?;
        }
        Ok(out)
    }

    fn deliver(&mut self, text: &str, out: &mut String) -> Result<(), TextError> {
        out.push_str(text.get(self.read_bytes..).unwrap_or_default());
        // The delivered tokens become the next window's known part.
        self.window.drain(..self.read);
        self.read = self.window.len();
        self.read_bytes = self.text.decode(&self.window, self.skip_special)?.len();
        Ok(())
    }
}
