//! What one engine step does: owned data, planned by the scheduler and run by an [`Executor`](crate::executor::Executor).
//!
//! A step runs a ragged batch of *rows*. A row appends `query_len` tokens to one sequence and may sample from the logits
//! of its last token. Two steps may be in flight, so a row can name tokens and positions that only the device knows.

use std::sync::Arc;

use baton_kernels::{kv::PageId, sampling::SamplingParams};
use serde::{Deserialize, Serialize};

/// Number of a step, counted from 1; its order is the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId(pub u64);

/// A place in the executor's tables that one sequence keeps from [`SlotOpen`] until another sequence opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotId(pub u32);

/// One engine step. Applied in field order: slots are opened, pages are copied, rows run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    pub step: StepId,
    pub opened: Vec<SlotOpen>,
    pub copies: Vec<PageCopy>,
    pub rows: Vec<Row>,
}

/// Binds a sequence to a slot, whoever held the slot before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotOpen {
    pub slot: SlotId,
    /// Which of a request's answers this is: part of the key of its random numbers.
    pub choice: u32,
    pub sampling: Arc<SamplingParams>,
    /// Prompt tokens, for the repetition penalty.
    pub prompt: Arc<[u32]>,
    /// Output tokens that exist already (handed off, migrated, preempted): penalties count them, and the last is the
    /// input of the slot's first row where that says [`RowTokens::LastOutput`].
    pub output: Vec<u32>,
}

/// Copies one page, all layers, before the rows run: the fork of a shared partial page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCopy {
    pub from: PageId,
    pub to: PageId,
}

/// Appends tokens to one sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub slot: SlotId,
    pub start: RowStart,
    pub tokens: RowTokens,
    /// The sequence's block table: page `i` holds positions `i * page_tokens ..`. Long enough for the furthest
    /// position that the row can write.
    pub pages: Vec<PageId>,
    /// The slots that sample from the logits of the row's last token: none while a prompt has chunks left, the row's own
    /// slot in decode, and every choice's slot when a prompt with `n > 1` ends.
    pub sample: Vec<SlotId>,
}

/// Position of a row's first token in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowStart {
    Known(u32),
    /// Where the slot's previous row, still in flight, ends. The plan knows an upper bound only.
    AfterPrevious {
        at_most: u32,
    },
}

/// Where a row's tokens come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowTokens {
    /// Prompt tokens, or recomputed ones.
    Host(Vec<u32>),
    /// The last token that this slot sampled, wherever that was: the sample may still be in flight.
    LastOutput,
}

impl Row {
    /// Tokens this row appends before sampling.
    #[must_use]
    pub fn query_len(&self) -> u32 {
        match &self.tokens {
            RowTokens::Host(tokens) => tokens.len() as u32,
            RowTokens::LastOutput => 1,
        }
    }
}

/// What a finished step produced.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    pub step: StepId,
    /// One entry for each slot in the rows' `sample`, in order.
    pub sampled: Vec<Sampled>,
    /// Time the device spent on it.
    pub seconds: f64,
}

/// The tokens one slot sampled in one step: one, or up to k + 1 where k drafted tokens were verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub slot: SlotId,
    pub tokens: Vec<u32>,
    /// Empty, or one for each token, where the slot's sampling asks for them.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Log-probabilities at one position, of the distribution before temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub chosen: (u32, f32),
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}
