//! One sequence of tokens and how far it has come.

use std::time::Duration;

use baton_proto::{BlockHash, BlockHasher, CacheScope};

use super::{RequestKey, block_table::BlockTable};
use crate::step::SlotId;

/// Names one sequence; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SequenceKey(pub(super) u64);

/// Order of service, the same for admission, for pages, and (reversed) for preemption.
///
/// A request of priority p that arrived at t ranks as if it had arrived at t + p * aging. That bounds starvation: whoever
/// comes more than (difference of priorities) * aging later ranks behind. Ranks never change, so two sequences cannot
/// preempt each other in turn, and the first in rank always gets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    virtual_arrival: i128,
    request: RequestKey,
    pub(super) sequence: SequenceKey,
}

/// A prompt with its output so far.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) rank: Rank,
    pub(super) request: RequestKey,
    pub(super) choice: u32,
    /// Choices that share the sequence until its prompt has run, then fork from it.
    pub(super) forks: Vec<u32>,
    /// Prompt and output. Never empty.
    pub(super) tokens: Vec<u32>,
    /// Most tokens that it may have.
    pub(super) cap: u32,
    /// For a prefill's sink: the first page that has not been named to it.
    pub(super) undelivered: u32,
    pub(super) last_output: Option<Duration>,
    pub(super) phase: Phase,
    hashes: Vec<BlockHash>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Has no pages. Also after preemption: all its tokens are run again.
    Waiting,
    /// KV is to come from a prefill worker.
    HandOff(HandOff),
    /// Has the KV of all its tokens but the last, and needs only a slot.
    Ready(BlockTable),
    Running(Running),
}

/// A hand-off on its way in. The table holds the leading pages that are here already.
#[derive(Debug)]
pub(super) enum HandOff {
    /// The prefill worker has not started yet.
    Held(BlockTable),
    /// Waits for its part of the inbound share.
    LeaseWanted { held: BlockTable, lease: u64 },
    /// All pages of the prompt, those after the first `held` being written by the transfer.
    Leased { table: BlockTable, held: u32 },
}

#[derive(Debug)]
pub(super) struct Running {
    /// Its own, then one for each fork.
    pub(super) slots: Vec<SlotId>,
    pub(super) opening: Opening,
    pub(super) table: BlockTable,
    /// Number of this stay among the running, by which outcomes of an earlier one are told apart.
    pub(super) admission: u64,
    pub(super) progress: Progress,
}

/// Whether a plan has bound the slots to the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Due,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Tokens from `next` on are in no step yet.
    Prompt { next: u32 },
    /// Every known token is in a step or done.
    Output(Ahead),
}

/// Rows in flight that sample for a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) rows: u32,
    /// Tokens that they can yield beyond one each.
    pub(super) drafts: u32,
}

impl Rank {
    pub(super) fn new(
        (priority, aging): (i32, Duration),
        accepted: Duration,
        request: RequestKey,
        sequence: SequenceKey,
    ) -> Self {
        let shift = i128::from(priority) * aging.as_nanos() as i128;
        Self {
            virtual_arrival: accepted.as_nanos() as i128 + shift,
            request,
            sequence,
        }
    }

    /// The rank of a sequence that forks from the one of this rank.
    pub(super) fn fork(self, sequence: SequenceKey) -> Self {
        Self { sequence, ..self }
    }
}

impl Sequence {
    pub(super) fn new(rank: Rank, request: RequestKey, choice: u32, tokens: Vec<u32>, cap: u32) -> Self {
        Self {
            rank,
            request,
            choice,
            forks: Vec::new(),
            tokens,
            cap,
            undelivered: 0,
            last_output: None,
            phase: Phase::Waiting,
            hashes: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Slots that it needs.
    pub(super) fn choices(&self) -> usize {
        1 + self.forks.len()
    }

    /// The hashes of its first `pages` pages, which must be full.
    pub(super) fn hashes(
        &mut self,
        pages: u32,
        hasher: &BlockHasher,
        scope: CacheScope,
        page_tokens: u32,
    ) -> &[BlockHash] {
        let size = page_tokens as usize;
        for page in self.hashes.len()..pages as usize {
            let parent = self.hashes.last().copied();
            let tokens = &self.tokens[page * size..(page + 1) * size];
            self.hashes.push(hasher.block(scope, parent, tokens));
        }
        &self.hashes[..pages as usize]
    }

    /// The hash of a full page of tokens, if it has been computed.
    pub(super) fn known_hash(&self, page: u32) -> Option<BlockHash> {
        self.hashes.get(page as usize).copied()
    }

    /// Another choice that goes on from this sequence's tokens.
    pub(super) fn fork(&self, key: SequenceKey, choice: u32, phase: Phase) -> Self {
        Self {
            rank: self.rank.fork(key),
            request: self.request,
            choice,
            forks: Vec::new(),
            tokens: self.tokens.clone(),
            cap: self.cap,
            undelivered: 0,
            last_output: None,
            phase,
            hashes: self.hashes.clone(),
        }
    }

    pub(super) fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) => Some(running),
            Phase::Waiting | Phase::HandOff(_) | Phase::Ready(_) => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.phase {
            Phase::Running(running) => Some(running),
            Phase::Waiting | Phase::HandOff(_) | Phase::Ready(_) => None,
        }
    }
}
