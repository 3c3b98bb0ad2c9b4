//! KV that comes from a prefill worker: what is held, leased, adopted.

use std::time::Duration;

use super::{
    Notice, Observation, RequestKey, Scheduler,
    block_table::BlockTable,
    room::Promised,
    sequence::{HandOff, Phase, Sequence, SequenceKey},
};
use crate::{
    handle::FirstToken,
    request::{EngineEvent, FinishReason, RequestError, Work},
};

/// How urgent a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// May preempt only who ranks behind it.
    InOrder,
    /// Nothing else can get on because of what hand-offs hold: may preempt anybody.
    Forced,
}

/// Why a lease has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoLease {
    ShareUsedUp,
    NoPages,
}

impl Scheduler {
    /// The prefill worker started: the missing pages are wanted. Ignored unless the request waits for a hand-off.
    pub fn lease(&mut self, key: RequestKey, lease: u64) {
        self.release_lease(key);
        self.change_handoff(key, |handoff| match handoff {
            HandOff::Held(held) => HandOff::LeaseWanted { held, lease },
            other => other,
        });
    }

    /// The hand-off failed: the request waits again as after [`EngineEvent::NeedsHandoff`].
    pub fn release_lease(&mut self, key: RequestKey) {
        self.change_handoff(key, |handoff| match handoff {
            HandOff::Held(held) | HandOff::LeaseWanted { held, .. } => HandOff::Held(held),
            HandOff::Leased { mut table, held } => {
                table.truncate(held);
                HandOff::Held(table)
            }
        });
    }

    /// The prompt is run on this engine after all. Ignored unless the request waits for a hand-off.
    pub fn prefill_here(&mut self, key: RequestKey) {
        if let Some(id) = self.handoff_of(key)
            && let Some(sequence) = self.sequences.get_mut(&id)
        {
            sequence.phase = Phase::Waiting;
            self.queue.insert(sequence.rank);
        }
    }

    /// The leased pages hold the prompt's KV, and these are the tokens after it: one for each choice. They are the
    /// caller's already and are not reported again; one that ends its choice does so at once.
    pub fn adopt(&mut self, key: RequestKey, first: &[FirstToken], now: Duration) {
        let Some(id) = self.handoff_of(key) else {
            return;
        };
        if let Err(error) = self.check_first(id, first) {
            self.fail(key, error);
            return;
        }
        let Some(mut sequence) = self.sequences.remove(&id) else {
            return;
        };
        let Phase::HandOff(HandOff::Leased { mut table, .. }) =
            std::mem::replace(&mut sequence.phase, Phase::Waiting)
        else {
            self.sequences.insert(id, sequence);
            self.fail(key, RequestError::Invalid("KV was adopted without a lease"));
            return;
        };
        let Some(open) = self.requests.get_mut(&key) else {
            return;
        };
        let queued = now.saturating_sub(open.accepted);
        open.begun = true;
        open.answered = true;
        tracing::debug!(request = %open.spec.id, key = key.0, ?queued, "adopted");
        self.observations.push(Observation::Begun(queued));
        let full = sequence.len() / self.page_tokens;
        table.seal(
            sequence.hashes(full, &self.hasher, open.spec.scope, self.page_tokens),
            &mut self.index,
        );
        let mut adopted = Vec::new();
        for choice in std::mem::take(&mut sequence.forks) {
            self.last_sequence += 1;
            let fork = SequenceKey(self.last_sequence);
            let table = table.fork(sequence.len(), self.page_tokens);
            adopted.push(sequence.fork(fork, choice, Phase::Ready(table)));
        }
        sequence.phase = Phase::Ready(table);
        adopted.push(sequence);
        let ids: Vec<SequenceKey> = adopted.iter().map(|sequence| sequence.rank.sequence).collect();
        for mut sequence in adopted {
            let given = first.iter().find(|first| first.choice == sequence.choice);
            sequence.tokens.extend(given.map(|first| first.token));
            sequence.last_output = Some(now);
            self.queue.insert(sequence.rank);
            self.insert(sequence);
        }
        for id in ids {
            self.end_if_over(id);
        }
    }

    /// Ends an adopted sequence whose first token was its last.
    fn end_if_over(&mut self, id: SequenceKey) {
        let Some(sequence) = self.sequences.get(&id) else {
            return;
        };
        let Some(open) = self.requests.get(&sequence.request) else {
            return;
        };
        let last = sequence.tokens.last().copied();
        if let Some(stop) = last.filter(|token| open.spec.stop.stop_tokens.contains(token)) {
            self.finish(id, FinishReason::Stop, Some(stop));
        } else if sequence.len() >= sequence.cap {
            self.finish(id, FinishReason::Length, None);
        }
    }

    /// A new request that asks for it waits for a prefill worker, unless so little is missing that running it here is
    /// cheaper, or its prompt exceeds the share of the pool that hand-offs may use.
    pub(super) fn begin_handoff(&mut self, id: SequenceKey) {
        let share = self.inbound_share();
        let allowance = self.executor.pages - share;
        let spare = allowance.saturating_sub(self.held_pages());
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Some(open) = self.requests.get(&sequence.request) else {
            return;
        };
        let Work::GenerateFromHandoff { min_missing_tokens } = open.spec.work else {
            return;
        };
        if sequence.len().div_ceil(self.page_tokens) > share {
            return;
        }
        let len = sequence.len();
        let most = (len - 1) / self.page_tokens;
        let chain = sequence.hashes(most, &self.hasher, open.spec.scope, self.page_tokens);
        let found = self.index.matched(chain) as u32;
        if len - found * self.page_tokens < min_missing_tokens {
            return;
        }
        // While somebody waits for pages, new requests must not add to what is held against it.
        let most = if self.page_starved { 0 } else { found.min(spare) };
        let held = self.index.lookup(&chain[..most as usize]);
        let held_pages = held.len() as u32;
        sequence.phase = Phase::HandOff(HandOff::Held(BlockTable::cached(held)));
        self.queue.remove(&sequence.rank);
        let request = sequence.request;
        self.notify(request, EngineEvent::NeedsHandoff { held_pages });
    }

    pub(super) fn grant(&mut self, id: SequenceKey, grant: Grant) -> Result<(), NoLease> {
        let sequence = &self.sequences[&id];
        let Phase::HandOff(HandOff::LeaseWanted { held, lease }) = &sequence.phase else {
            return Ok(());
        };
        let (rank, request, lease, first_page) = (sequence.rank, sequence.request, *lease, held.len());
        let whole = self.pages_for(sequence.len());
        if self.leased_pages() + whole > self.inbound_share() {
            return Err(NoLease::ShareUsedUp);
        }
        let missing = whole - first_page;
        match grant {
            Grant::InOrder => {
                if !self.make_room(missing, rank) {
                    return Err(NoLease::NoPages);
                }
            }
            Grant::Forced => {
                if self.available() + self.preemptable() < missing {
                    return Err(NoLease::NoPages);
                }
                while self.available() < missing && self.preempt_any() {}
            }
        }
        let pages = self.take_pages(missing, rank, &mut Promised::default());
        if pages.len() < missing as usize {
            return Err(NoLease::NoPages);
        }
        let mut pins = Vec::new();
        self.change_handoff(request, |handoff| match handoff {
            HandOff::LeaseWanted { held: mut table, .. } => {
                pages.into_iter().for_each(|page| table.push(page));
                pins = table.pins(first_page, whole);
                HandOff::Leased {
                    table,
                    held: first_page,
                }
            }
            other => other,
        });
        let pages = pins.into_iter().map(|(_, pin)| pin).collect();
        self.notices.push(Notice {
            request,
            event: EngineEvent::Leased { first_page, pages },
            lease: Some(lease),
            last: false,
        });
        Ok(())
    }

    /// Gives some hand-off its lease although others wait before it: first those that hold pages here, but in the end any,
    /// since its prefill worker keeps pages for it too, which others may wait for there. Returns whether there was one.
    pub(super) fn force_lease(&mut self) -> bool {
        let wanted = |holds: bool| {
            move |sequence: &Sequence| match &sequence.phase {
                Phase::HandOff(HandOff::LeaseWanted { held, .. }) => (held.len() > 0) == holds,
                _ => false,
            }
        };
        for holds in [true, false] {
            let candidates: Vec<SequenceKey> = self
                .queue
                .iter()
                .map(|rank| rank.sequence)
                .filter(|id| wanted(holds)(&self.sequences[id]))
                .collect();
            if candidates
                .into_iter()
                .any(|id| self.grant(id, Grant::Forced).is_ok())
            {
                return true;
            }
        }
        false
    }

    /// Pages that leases may use together, held ones included.
    fn inbound_share(&self) -> u32 {
        (f64::from(self.executor.pages) * self.config.inbound_share) as u32
    }

    fn leased_pages(&self) -> u32 {
        self.handoffs()
            .map(|handoff| match handoff {
                HandOff::Leased { table, .. } => table.len(),
                HandOff::Held(_) | HandOff::LeaseWanted { .. } => 0,
            })
            .sum()
    }

    /// Pages held by those that have no lease yet.
    fn held_pages(&self) -> u32 {
        self.handoffs()
            .map(|handoff| match handoff {
                HandOff::Held(held) | HandOff::LeaseWanted { held, .. } => held.len(),
                HandOff::Leased { .. } => 0,
            })
            .sum()
    }

    fn handoffs(&self) -> impl Iterator<Item = &HandOff> {
        self.sequences
            .values()
            .filter_map(|sequence| match &sequence.phase {
                Phase::HandOff(handoff) => Some(handoff),
                Phase::Waiting | Phase::Ready(_) | Phase::Running(_) => None,
            })
    }

    /// The sequence of a request that waits for a hand-off; there is one for all its choices.
    fn handoff_of(&self, key: RequestKey) -> Option<SequenceKey> {
        let open = self.requests.get(&key)?;
        let waits = |id: &&SequenceKey| matches!(self.sequences[*id].phase, Phase::HandOff(_));
        open.sequences.iter().find(waits).copied()
    }

    /// Moves a hand-off to another state, and in or out of the queue.
    fn change_handoff(&mut self, key: RequestKey, change: impl FnOnce(HandOff) -> HandOff) {
        let Some(sequence) = self.handoff_of(key).and_then(|id| self.sequences.get_mut(&id)) else {
            return;
        };
        match std::mem::replace(&mut sequence.phase, Phase::Waiting) {
            Phase::HandOff(handoff) => {
                let handoff = change(handoff);
                if matches!(handoff, HandOff::LeaseWanted { .. }) {
                    self.queue.insert(sequence.rank);
                } else {
                    self.queue.remove(&sequence.rank);
                }
                sequence.phase = Phase::HandOff(handoff);
            }
            other => sequence.phase = other,
        }
    }

    fn check_first(&self, id: SequenceKey, first: &[FirstToken]) -> Result<(), RequestError> {
        let sequence = &self.sequences[&id];
        let mut expected: Vec<u32> = sequence.forks.clone();
        expected.push(sequence.choice);
        expected.sort_unstable();
        let mut given: Vec<u32> = first.iter().map(|first| first.choice).collect();
        given.sort_unstable();
        if expected != given {
            return Err(RequestError::Invalid(
                "a hand-off gives one first token for each choice",
            ));
        }
        let vocab = self.executor.vocab;
        match first.iter().find(|first| first.token >= vocab) {
            Some(first) => Err(RequestError::TokenOutOfRange {
                token: first.token,
                vocab,
            }),
            None => Ok(()),
        }
    }
}
