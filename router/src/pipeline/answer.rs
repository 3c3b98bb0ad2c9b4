//! One growing answer: its tokens, its text, and what may be shown of it.

use std::sync::Arc;

use baton_proto::v1::{FinishReason, TokenLogprobs};

use super::{Delta, Event, Finished, StopCause};
use crate::text::{Detokenizer, ModelText, StopStrings, Stopped, TextError};

/// What all answers to one prompt have in common.
#[derive(Clone, Debug)]
pub(super) struct AnswerSettings {
    pub(super) text: Arc<ModelText>,
    pub(super) stop_strings: Vec<String>,
    /// Stop strings do not count before this many tokens.
    pub(super) min_tokens: u32,
    pub(super) skip_special_tokens: bool,
}

#[derive(Debug)]
pub(super) struct Answer {
    /// Among all answers of the request.
    choice: u32,
    min_tokens: u32,
    detokenizer: Detokenizer,
    stops: StopStrings,
    /// Every token of the answer: what another worker would have to be told to go on.
    emitted: Vec<u32>,
    /// What has arrived and not been shown.
    pending: Delta,
    finished: bool,
    /// Tokens of the answer, with the one that ended it.
    tokens: u32,
}

impl Answer {
    pub(super) fn new(choice: u32, prompt: &[u32], settings: &AnswerSettings) -> Self {
        Self {
            choice,
            min_tokens: settings.min_tokens,
            detokenizer: Detokenizer::new(Arc::clone(&settings.text), prompt, settings.skip_special_tokens),
            stops: StopStrings::new(&settings.stop_strings),
            emitted: Vec::new(),
            pending: empty(choice),
            finished: false,
            tokens: 0,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(super) fn emitted(&self) -> &[u32] {
        &self.emitted
    }

    /// Takes tokens from the worker. A finished answer, one that a stop string ended, takes none.
    pub(super) fn push(&mut self, ids: &[u32], logprobs: &[TokenLogprobs]) -> Result<Vec<Event>, TextError> {
        // One at a time: the token that completes a stop string is the last that counts.
        for (at, id) in ids.iter().enumerate() {
            if self.finished {
                return Ok(Vec::new());
            }
            self.tokens += 1;
            self.emitted.push(*id);
            self.pending.ids.push(*id);
            self.pending.logprobs.extend(logprobs.get(at).cloned());
            let piece = self.detokenizer.push(&[*id])?;
            if self.tokens <= self.min_tokens {
                self.pending.text.push_str(&piece);
            } else if let Some(stop) = self.scan(&piece) {
                return Ok(self.finish(FinishReason::Stop, Some(StopCause::String(stop))));
            }
        }
        if self.pending.text.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![Event::Delta(std::mem::replace(
            &mut self.pending,
            empty(self.choice),
        ))])
    }

    /// The worker says that the answer has ended.
    pub(super) fn end(
        &mut self,
        reason: FinishReason,
        stop_token: Option<u32>,
    ) -> Result<Vec<Event>, TextError> {
        if self.finished {
            return Ok(Vec::new());
        }
        self.tokens += u32::from(stop_token.is_some());
        let held = self.detokenizer.finish()?;
        if let Some(stop) = self.scan(&held) {
            return Ok(self.finish(FinishReason::Stop, Some(StopCause::String(stop))));
        }
        self.pending.text.push_str(&self.stops.finish());
        Ok(self.finish(reason, stop_token.map(StopCause::Token)))
    }

    /// Moves what may be shown of `piece` to the pending text; the stop string, if one is complete.
    fn scan(&mut self, piece: &str) -> Option<String> {
        let (text, stop) = match self.stops.push(piece) {
            Stopped::No(text) => (text, None),
            Stopped::At { text, stop } => (text, Some(stop)),
        };
        self.pending.text.push_str(&text);
        stop
    }

    fn finish(&mut self, reason: FinishReason, cause: Option<StopCause>) -> Vec<Event> {
        self.finished = true;
        let last = std::mem::replace(&mut self.pending, empty(self.choice));
        let mut events = Vec::new();
        if !last.ids.is_empty() || !last.text.is_empty() {
            events.push(Event::Delta(last));
        }
        events.push(Event::Finished(Finished {
            choice: self.choice,
            reason,
            cause,
            tokens: self.tokens,
        }));
        events
    }
}

fn empty(choice: u32) -> Delta {
    Delta {
        choice,
        text: String::new(),
        ids: Vec::new(),
        logprobs: Vec::new(),
    }
}
