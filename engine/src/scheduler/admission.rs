//! Who of the waiting runs next.

use std::time::Duration;

use super::{
    Delivery, Observation, Scheduler,
    block_table::BlockTable,
    handoff::Grant,
    room::Promised,
    sequence::{Ahead, HandOff, Opening, Phase, Progress, Rank, Running, Sequence, SequenceKey},
};
use crate::request::{EngineEvent, Work};

/// What became of a waiting prompt.
enum Admission {
    Admitted,
    /// Not now, but those behind it may.
    Passed,
    /// Those behind it must not take what it waits for.
    NoSlots,
    NoPages,
}

/// Places for prompts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Any,
    ShortOnly,
    None,
}

impl Scheduler {
    /// Admits in order of rank: waiting prompts, sequences that came with their KV, and leases for those that come.
    /// Returns whether somebody waits for pages.
    pub(super) fn admit(&mut self, now: Duration) -> bool {
        let mut blocked = false;
        let mut share_full = false;
        let candidates: Vec<Rank> = self.queue.iter().copied().collect();
        for rank in candidates {
            let id = rank.sequence;
            match &self.sequences[&id].phase {
                Phase::Waiting if blocked => {}
                Phase::Waiting => match self.admit_prompt(id, now) {
                    Admission::Admitted | Admission::Passed => {}
                    Admission::NoPages => blocked = true,
                    Admission::NoSlots => break,
                },
                // Has its pages: a prompt that waits for pages is not harmed, since it may preempt this one.
                Phase::Ready(_) => {
                    if self.free_slots.is_empty() {
                        break;
                    }
                    self.resume(id);
                }
                Phase::HandOff(HandOff::LeaseWanted { .. }) if !blocked && !share_full => {
                    match self.grant(id, Grant::InOrder) {
                        Ok(()) => {}
                        Err(super::handoff::NoLease::ShareUsedUp) => share_full = true,
                        Err(super::handoff::NoLease::NoPages) => blocked = true,
                    }
                }
                Phase::HandOff(_) | Phase::Running(_) => {}
            }
        }
        blocked
    }

    fn admit_prompt(&mut self, id: SequenceKey, now: Duration) -> Admission {
        if self.sequences[&id].choices() > self.free_slots.len() {
            return Admission::NoSlots;
        }
        let place = self.place();
        if place == Place::None {
            return Admission::Passed;
        }
        let Some(mut sequence) = self.sequences.remove(&id) else {
            return Admission::Passed;
        };
        let admission = self.try_admit(&mut sequence, place, now);
        self.sequences.insert(id, sequence);
        admission
    }

    /// `sequence` is out of the map meanwhile; its rank is still in the queue.
    fn try_admit(&mut self, sequence: &mut Sequence, place: Place, now: Duration) -> Admission {
        let Some(open) = self.requests.get(&sequence.request) else {
            return Admission::Passed;
        };
        // At least one token must run to sample from.
        let most = (sequence.len() - 1) / self.page_tokens;
        let chain = sequence.hashes(most, &self.hasher, open.spec.scope, self.page_tokens);
        let found = self.index.matched(chain) as u32;
        let is_short = sequence.len() - found * self.page_tokens <= self.config.max_batch_tokens;
        if place == Place::ShortOnly && !is_short {
            return Admission::Passed;
        }
        if found < most && self.is_being_computed(sequence, found) {
            return Admission::Passed;
        }
        let chain = sequence.hashes(found, &self.hasher, open.spec.scope, self.page_tokens);
        let mut table = BlockTable::cached(self.index.lookup(chain));
        let found = table.len();
        let needed = self.pages_to_start(sequence).saturating_sub(found);
        let rank = sequence.rank;
        self.queue.remove(&rank);
        if !self.make_room(needed, rank) || !self.endow(sequence, &mut table, needed) {
            self.queue.insert(rank);
            return Admission::NoPages;
        }
        self.begin(sequence, found, now);
        self.observations.push(Observation::Looked {
            queried_tokens: most * self.page_tokens,
            hit_tokens: found * self.page_tokens,
        });
        self.deliver_cached(sequence, &table, found);
        let next = found * self.page_tokens;
        self.run(sequence, table, Progress::Prompt { next });
        Admission::Admitted
    }

    /// A prefill for a decode worker gets all its pages at once and is never preempted, so that it ends whatever else
    /// happens here: a lease of the decode worker's depends on it, and other hand-offs on that.
    fn endow(&mut self, sequence: &Sequence, table: &mut BlockTable, needed: u32) -> bool {
        if !self.is_prefill(sequence) {
            return true;
        }
        let pages = self.take_pages(needed, sequence.rank, &mut Promised::default());
        let complete = pages.len() == needed as usize;
        pages.into_iter().for_each(|page| table.push(page));
        complete
    }

    /// The first sequence of a request to run starts the request.
    fn begin(&mut self, sequence: &Sequence, cached_pages: u32, now: Duration) {
        let Some(open) = self.requests.get_mut(&sequence.request) else {
            return;
        };
        if !std::mem::replace(&mut open.begun, true) {
            let queued = now.saturating_sub(open.accepted);
            let cached_tokens = cached_pages * self.page_tokens;
            tracing::debug!(request = %open.spec.id, key = sequence.request.0, cached_tokens, ?queued, "started");
            self.observations.push(Observation::Begun(queued));
            self.notify(
                sequence.request,
                EngineEvent::Started {
                    cached_tokens,
                    queued,
                },
            );
        }
    }

    /// Tells a prefill's sink of the pages that need not be computed.
    fn deliver_cached(&mut self, sequence: &mut Sequence, table: &BlockTable, cached: u32) {
        let Some(open) = self.requests.get(&sequence.request) else {
            return;
        };
        if let Work::Prefill { sink, .. } = &open.spec.work
            && sequence.undelivered < cached
        {
            self.ready_now.push(Delivery {
                sink: std::sync::Arc::clone(sink),
                pages: table.pins(sequence.undelivered, cached),
            });
            sequence.undelivered = cached;
        }
    }

    /// A sequence that has the KV of all its tokens but the last goes on.
    fn resume(&mut self, id: SequenceKey) {
        let Some(mut sequence) = self.sequences.remove(&id) else {
            return;
        };
        match std::mem::replace(&mut sequence.phase, Phase::Waiting) {
            Phase::Ready(table) => {
                self.queue.remove(&sequence.rank);
                self.run(&mut sequence, table, Progress::Output(Ahead::default()));
            }
            other => sequence.phase = other,
        }
        self.sequences.insert(id, sequence);
    }

    fn run(&mut self, sequence: &mut Sequence, table: BlockTable, progress: Progress) {
        self.last_admission += 1;
        let first = self.free_slots.len() - sequence.choices();
        let slots = self.free_slots.split_off(first);
        self.running.insert(sequence.rank);
        sequence.phase = Phase::Running(Running {
            slots,
            opening: Opening::Due,
            table,
            admission: self.last_admission,
            progress,
        });
    }

    fn place(&self) -> Place {
        let prompts = self.prompts().count();
        let most = self.config.max_prefills;
        if prompts >= most {
            Place::None
        } else if most >= 2 && prompts + 1 == most {
            Place::ShortOnly
        } else {
            Place::Any
        }
    }

    /// Whether a prompt that runs will soon have the page that this one lacks first: then waiting is cheaper than
    /// computing it twice.
    fn is_being_computed(&self, sequence: &Sequence, page: u32) -> bool {
        let Some(hash) = sequence.known_hash(page) else {
            return false;
        };
        self.prompts().any(|other| other.known_hash(page) == Some(hash))
    }

    /// Running sequences whose prompt has tokens that are in no finished step.
    fn prompts(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().filter_map(|rank| {
            let sequence = self.sequences.get(&rank.sequence)?;
            let running = sequence.running()?;
            matches!(running.progress, Progress::Prompt { .. }).then_some(sequence)
        })
    }
}
