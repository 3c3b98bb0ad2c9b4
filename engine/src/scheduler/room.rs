//! Pages: who needs how many, and where they come from.

use baton_kvcache::MutablePage;

use super::{
    Observation, Scheduler,
    sequence::{Ahead, Phase, Progress, Rank, Sequence, SequenceKey},
};
use crate::{request::Work, step::RowStart};

/// A decode row that could be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DecodeRow {
    pub(super) start: RowStart,
    /// Positions that the block table must cover.
    pub(super) reach: u32,
}

/// Pages promised, in the order of rank, to sequences that have to wait for a step to complete. Nobody behind them
/// evicts or preempts for the same pages again.
#[derive(Debug, Default)]
pub(super) struct Promised(u32);

impl Promised {
    pub(super) fn any(&self) -> bool {
        self.0 > 0
    }
}

impl Scheduler {
    pub(super) fn pages_for(&self, positions: u32) -> u32 {
        positions.div_ceil(self.page_tokens)
    }

    pub(super) fn is_prefill(&self, sequence: &Sequence) -> bool {
        let open = self.requests.get(&sequence.request);
        open.is_some_and(|open| matches!(open.spec.work, Work::Prefill { .. }))
    }

    /// Pages with which a sequence can run its prompt and one decode row for each choice.
    pub(super) fn pages_to_start(&self, sequence: &Sequence) -> u32 {
        let prompt = sequence.len();
        let written = self.limits.written_positions(sequence.cap);
        if self.is_prefill(sequence) || written <= prompt {
            return self.pages_for(prompt);
        }
        self.pages_for(prompt + 1) + sequence.forks.len() as u32
    }

    /// The next decode row of a sequence whose prompt has been planned: none where the rows in flight finish it for
    /// certain, or where it might reach past the context if they yield all that they can.
    pub(super) fn decode_row(&self, sequence: &Sequence, ahead: Ahead) -> Option<DecodeRow> {
        let drafts = self.executor.tokens_per_sample - 1;
        let at_least = sequence.len() + ahead.rows;
        let at_most = at_least + ahead.drafts;
        let exact = ahead.drafts == 0;
        if at_least >= sequence.cap || self.is_prefill(sequence) {
            return None;
        }
        if !exact && at_most + drafts > self.executor.context_tokens {
            return None;
        }
        let start = if exact {
            RowStart::Known(at_least - 1)
        } else {
            RowStart::AfterPrevious { at_most: at_most - 1 }
        };
        let reach = (at_most + drafts).min(self.executor.context_tokens);
        Some(DecodeRow { start, reach })
    }

    /// Pages that the running will ask for soon: for the rest of their prompts, or for their next row.
    pub(super) fn reserved(&self) -> u32 {
        self.running.iter().map(|rank| self.wanted(rank.sequence)).sum()
    }

    /// Pages that can be had without preemption, some of them only when the steps in flight are done.
    pub(super) fn available(&mut self) -> u32 {
        self.pages.reclaim();
        let counts = self.pages.counts();
        counts.free + counts.retiring + self.index.idle() as u32
    }

    /// Makes sure that `needed` pages are available beside what the running will ask for, preempting those behind
    /// `rank` if that is enough.
    pub(super) fn make_room(&mut self, needed: u32, rank: Rank) -> bool {
        let behind: u32 = self.victims(rank).map(|id| self.held_or_wanted(id)).sum();
        if self.available() + behind < self.reserved() + needed {
            return false;
        }
        while self.available() < self.reserved() + needed {
            if !self.preempt_behind(rank) {
                return false;
            }
        }
        true
    }

    /// Up to `wanted` pages at once; what is missing is promised.
    pub(super) fn take_pages(
        &mut self,
        wanted: u32,
        rank: Rank,
        promised: &mut Promised,
    ) -> Vec<MutablePage> {
        let mut taken = Vec::new();
        loop {
            self.pages.reclaim();
            while taken.len() < wanted as usize {
                match self.pages.alloc() {
                    Some(page) => taken.push(page),
                    None => break,
                }
            }
            let missing = wanted - taken.len() as u32;
            if missing == 0 {
                return taken;
            }
            let short = (promised.0 + missing).saturating_sub(self.pages.counts().retiring);
            if short == 0 || (self.index.evict(short as usize) == 0 && !self.preempt_behind(rank)) {
                promised.0 += missing;
                return taken;
            }
        }
    }

    /// Preempts the last in rank, if it ranks behind this.
    pub(super) fn preempt_behind(&mut self, rank: Rank) -> bool {
        let Some(victim) = self.victims(rank).max_by_key(|id| self.sequences[id].rank) else {
            return false;
        };
        self.preempt(victim);
        true
    }

    /// Preempts the last in rank, whoever that is.
    pub(super) fn preempt_any(&mut self) -> bool {
        let running = self
            .running
            .iter()
            .rfind(|rank| self.is_preemptable(rank.sequence));
        let ready = self.queue.iter().rfind(|rank| self.is_preemptable(rank.sequence));
        let Some(victim) = running.max(ready).copied() else {
            return false;
        };
        self.preempt(victim.sequence);
        true
    }

    /// Pages of all that can be preempted; those that they share count for each.
    pub(super) fn preemptable(&self) -> u32 {
        let all = self.running.iter().chain(&self.queue).map(|rank| rank.sequence);
        all.filter(|id| self.is_preemptable(*id))
            .map(|id| self.held(id))
            .sum()
    }

    /// No step is in flight and none can be planned. Two things beside a page can be missing, and others have them that wait
    /// for pages themselves: a lease, by those that hold pages for it, and a slot, by who ranks before those that run. Returns
    /// whether that helped.
    pub(super) fn break_standstill(&mut self) -> bool {
        if self.force_lease() {
            return true;
        }
        let first = self
            .queue
            .iter()
            .find(|rank| match self.sequences[&rank.sequence].phase {
                Phase::Waiting | Phase::Ready(_) => true,
                Phase::HandOff(_) | Phase::Running(_) => false,
            });
        let last = self
            .running
            .iter()
            .rfind(|rank| self.is_preemptable(rank.sequence));
        match (first.copied(), last.copied()) {
            (Some(first), Some(last)) if first < last => {
                self.preempt(last.sequence);
                true
            }
            _ => false,
        }
    }

    /// Sequences behind `rank` that could give up pages.
    fn victims(&self, rank: Rank) -> impl Iterator<Item = SequenceKey> {
        let behind = (std::ops::Bound::Excluded(rank), std::ops::Bound::Unbounded);
        let all = self.running.range(behind).chain(self.queue.range(behind));
        all.map(|rank| rank.sequence)
            .filter(|id| self.is_preemptable(*id))
    }

    fn is_preemptable(&self, id: SequenceKey) -> bool {
        let sequence = &self.sequences[&id];
        match sequence.phase {
            Phase::Ready(_) => true,
            Phase::Running(_) => !self.is_prefill(sequence),
            Phase::Waiting | Phase::HandOff(_) => false,
        }
    }

    /// The sequence gives up its pages and slots and waits; later its tokens are run again, its output unchanged.
    /// What steps in flight sample for it is discarded: sampling is a function, the same tokens come again.
    fn preempt(&mut self, id: SequenceKey) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        self.running.remove(&sequence.rank);
        self.queue.insert(sequence.rank);
        if let Phase::Running(running) = std::mem::replace(&mut sequence.phase, Phase::Waiting) {
            self.free_slots.extend(running.slots);
        }
        tracing::debug!(
            key = sequence.request.0,
            choice = sequence.choice,
            tokens = sequence.len(),
            "preempted"
        );
        self.observations.push(Observation::Preempted);
    }

    /// Pages that a running sequence will ask for soon.
    fn wanted(&self, id: SequenceKey) -> u32 {
        let sequence = &self.sequences[&id];
        let Some(running) = sequence.running() else {
            return 0;
        };
        let target = match running.progress {
            Progress::Prompt { .. } => self.pages_to_start(sequence),
            Progress::Output(ahead) => {
                let row = self.decode_row(sequence, ahead);
                // Forks that are still to come are served when the prompt's outcome is known.
                row.map_or(0, |row| self.pages_for(row.reach)) + sequence.forks.len() as u32
            }
        };
        target.saturating_sub(running.table.len()) + u32::from(running.table.has_borrowed())
    }

    fn held_or_wanted(&self, id: SequenceKey) -> u32 {
        self.held(id) + self.wanted(id)
    }

    fn held(&self, id: SequenceKey) -> u32 {
        match &self.sequences[&id].phase {
            Phase::Ready(table) => table.len(),
            Phase::Running(running) => running.table.len(),
            Phase::Waiting | Phase::HandOff(_) => 0,
        }
    }
}
