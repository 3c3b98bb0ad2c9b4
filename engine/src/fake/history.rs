//! What the fake knows of the sequence in a slot.

use std::sync::Arc;

use baton_kernels::sampling::SamplingParams;

use super::model::{Digest, FakeModel};
use crate::step::{SlotOpen, TokenLogprobs};

/// The tokens of one sequence, with a digest up to each.
#[derive(Debug)]
pub(super) struct History {
    model: FakeModel,
    choice: u32,
    sampling: Arc<SamplingParams>,
    prompt: u32,
    tokens: Vec<u32>,
    digests: Vec<Digest>,
    /// Where the slot's last row ended.
    row_end: Option<u32>,
}

impl History {
    pub(super) fn open(open: &SlotOpen, model: FakeModel) -> Self {
        let mut history = Self {
            model,
            choice: open.choice,
            sampling: Arc::clone(&open.sampling),
            prompt: open.prompt.len() as u32,
            tokens: Vec::new(),
            digests: Vec::new(),
            row_end: None,
        };
        open.prompt
            .iter()
            .chain(&open.output)
            .for_each(|token| history.push(*token));
        history
    }

    pub(super) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(super) fn has_output(&self) -> bool {
        self.len() > self.prompt
    }

    pub(super) fn tokens(&self, start: u32, end: u32) -> &[u32] {
        &self.tokens[start as usize..end as usize]
    }

    pub(super) fn digest(&self, position: u32) -> Digest {
        self.digests[position as usize]
    }

    pub(super) fn row_end(&self) -> Option<u32> {
        self.row_end
    }

    pub(super) fn set_row_end(&mut self, end: u32) {
        self.row_end = Some(end);
    }

    /// Digests up to the next `count` tokens, which have not been sampled yet.
    pub(super) fn peek(&self, count: u32) -> Vec<Digest> {
        let mut digest = self.digests.last().copied().unwrap_or_default();
        (0..count)
            .map(|_| {
                digest = digest.push(self.model.next(digest, self.choice, &self.sampling));
                digest
            })
            .collect()
    }

    /// Appends the next tokens and returns them.
    pub(super) fn sample(&mut self, count: u32) -> (Vec<u32>, Vec<TokenLogprobs>) {
        let mut tokens = Vec::new();
        let mut logprobs = Vec::new();
        for _ in 0..count {
            let digest = self.digests.last().copied().unwrap_or_default();
            let token = self.model.next(digest, self.choice, &self.sampling);
            logprobs.extend(self.model.logprobs(token, &self.sampling));
            tokens.push(token);
            self.push(token);
        }
        (tokens, logprobs)
    }

    fn push(&mut self, token: u32) {
        let digest = self.digests.last().copied().unwrap_or_default().push(token);
        self.tokens.push(token);
        self.digests.push(digest);
    }
}
