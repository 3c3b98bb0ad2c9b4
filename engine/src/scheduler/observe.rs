//! What the outside can see: measurements, load, and whether the pages add up.

use std::time::Duration;

use baton_kvcache::pages::PageImbalance;

use super::{HandOff, Phase, Scheduler, sequence::Progress};
use crate::{
    load::{EngineLoad, PageLoad},
    request::FinishReason,
};

/// Something to count or to time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// A request's first chunk was planned, or its KV adopted, this long after it was accepted.
    Begun(Duration),
    /// A prompt was looked up in the prefix cache.
    Looked {
        queried_tokens: u32,
        hit_tokens: u32,
    },
    /// A request's first token was sampled here, this long after it was accepted.
    FirstToken(Duration),
    /// A sequence's later output came this long after the one before.
    Output {
        gap: Duration,
        tokens: u32,
    },
    Preempted,
    /// One choice, or a cancelled request.
    Ended(Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Finished(FinishReason),
    /// A prefill for a decode worker gave its first token.
    HandedOff,
    Cancelled,
    Failed,
}

impl Scheduler {
    /// How busy the engine is, as far as the scheduler knows: its rates and counters are left at zero.
    pub fn load(&mut self) -> EngineLoad {
        let running = self.sequences.values().filter_map(|sequence| sequence.running());
        let running = running.map(|running| running.slots.len() as u32).sum();
        EngineLoad {
            running,
            waiting: self.waiting_requests() as u32,
            waiting_tokens: self.sequences.values().map(waiting_tokens).sum(),
            pages: self.page_load(),
            ..EngineLoad::default()
        }
    }

    /// Pages by state, with everything taken in that was given back meanwhile.
    pub fn page_load(&mut self) -> PageLoad {
        self.pages.reclaim();
        let cached = self.index.idle() as u32;
        let counts = self.pages.counts();
        PageLoad {
            total: counts.total,
            free: counts.free,
            mutable: counts.mutable,
            sealed: counts.sealed,
            retiring: counts.retiring,
            cached,
        }
    }

    /// Whether every page is in exactly one state. Linear in the pages.
    ///
    /// # Errors
    /// [`PageImbalance`] if not: a defect.
    pub fn check_pages(&self) -> Result<(), PageImbalance> {
        self.pages.check()
    }

    /// Whether every slot is free or held by one sequence, and the queues agree with the phases: for tests and idle
    /// moments.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let mut slots: Vec<u32> = self.free_slots.iter().map(|slot| slot.0).collect();
        for running in self.sequences.values().filter_map(|sequence| sequence.running()) {
            slots.extend(running.slots.iter().map(|slot| slot.0));
        }
        slots.sort_unstable();
        let phases = self.sequences.values().all(|sequence| {
            let queued = match &sequence.phase {
                Phase::Waiting | Phase::Ready(_) | Phase::HandOff(HandOff::LeaseWanted { .. }) => true,
                Phase::HandOff(HandOff::Held(_) | HandOff::Leased { .. }) | Phase::Running(_) => false,
            };
            queued == self.queue.contains(&sequence.rank)
                && sequence.running().is_some() == self.running.contains(&sequence.rank)
        });
        let owned: usize = self.requests.values().map(|open| open.sequences.len()).sum();
        phases
            && owned == self.sequences.len()
            && self.requests.values().all(|open| !open.sequences.is_empty())
            && slots.iter().copied().eq(0..self.executor.slots)
    }
}

/// Tokens of its prompt that no step has computed.
fn waiting_tokens(sequence: &super::Sequence) -> u64 {
    match &sequence.phase {
        Phase::Waiting => u64::from(sequence.len()),
        Phase::Running(running) => match running.progress {
            Progress::Prompt { next } => u64::from(sequence.len() - next),
            Progress::Output(_) => 0,
        },
        Phase::HandOff(_) | Phase::Ready(_) => 0,
    }
}
