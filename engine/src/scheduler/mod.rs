//! Decides what each step runs. Pure: no clock, no threads, no I/O; time is an argument.
//!
//! A caller asks for a step with [`Scheduler::plan`], has it run, and reports with [`Scheduler::apply`]; up to
//! `steps_in_flight` steps may be planned ahead of their outcomes. What happened to requests is collected until
//! [`Scheduler::take_events`].
//!
//! # Policy
//! - **One order for everything** (`Rank`): admission, pages, and, reversed, preemption. Lower priority numbers go first,
//!   then earlier arrivals; a level of priority is worth `aging_seconds` of waiting. The order of two requests never changes, so
//!   the first in rank always gets on, and by induction everybody does.
//! - **Continuous batching.** Every sequence that decodes has a row in each step. Prompts share the rest of
//!   `max_batch_tokens` evenly (`chunks`), at most `max_prefills` of them at a time. The last of these places takes only
//!   prompts that fit one step, so that long prompts cannot keep short ones waiting.
//! - **Admission** is strict: a request that lacks slots or pages blocks those behind it, so that small ones cannot starve a
//!   large one. It may preempt the running that rank behind it, if that gives it enough.
//! - **Preemption by recomputation.** Who needs a page and finds none takes those of the last in rank, which waits again and
//!   later runs its prompt and output as one prompt. Pages of hand-offs are never taken, neither those that come in nor those
//!   that a prefill for a decode worker computes.
//! - **Hand-offs** lease pages in order of rank and from `inbound_share` of the pool; a prompt that exceeds the share is run
//!   here. The cached pages that requests hold while they wait for a lease come out of the rest of the pool, so together they cannot
//!   block each other.
//! - **Standstill.** Where nothing is in flight and nothing can be planned, what holds things up is held by hand-offs that wait
//!   for a lease, or by those that run while somebody before them lacks a slot. Then a lease is granted, or a slot taken, out of
//!   order. New hand-offs hold nothing while anybody lacks pages, so this happens a bounded number of times.

mod admission;
mod apply;
mod block_table;
mod chunks;
mod handoff;
mod limits;
mod observe;
mod plan;
mod room;
mod sequence;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use baton_kvcache::{PageAllocator, PagePin, PrefixIndex};
use baton_proto::BlockHasher;

use crate::{
    config::EngineConfig,
    executor::{ExecutorLimits, Wake},
    request::{ChoiceStart, EngineEvent, EngineRequest, FinishReason, RequestError, Work},
    step::SlotId,
};

pub use apply::{BadOutcome, StepSummary};
pub use limits::{CheckedRequest, RequestLimits};
pub use observe::{Ending, Observation};
pub use plan::{Delivery, Planned};

use sequence::{HandOff, Phase, Rank, Sequence, SequenceKey};

/// Names one request of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub u64);

/// An event of one request.
#[derive(Clone, Debug)]
pub struct Notice {
    pub request: RequestKey,
    pub event: EngineEvent,
    /// For [`EngineEvent::Leased`]: which lease.
    pub lease: Option<u64>,
    /// Nothing more will be heard of the request.
    pub last: bool,
}

/// All requests of one engine, and its pages.
pub struct Scheduler {
    config: EngineConfig,
    executor: ExecutorLimits,
    limits: RequestLimits,
    page_tokens: u32,
    hasher: BlockHasher,
    pages: PageAllocator,
    index: PrefixIndex,
    requests: BTreeMap<RequestKey, Open>,
    sequences: BTreeMap<SequenceKey, Sequence>,
    /// Waiting, ready, and those that want a lease.
    queue: BTreeSet<Rank>,
    running: BTreeSet<Rank>,
    deadlines: BTreeSet<(Duration, RequestKey)>,
    free_slots: Vec<SlotId>,
    in_flight: VecDeque<plan::InFlight>,
    /// Sources of the copies of the step being planned.
    copied: Vec<PagePin>,
    /// At the last plan, somebody lacked pages.
    page_starved: bool,
    last_step: u64,
    last_sequence: u64,
    last_admission: u64,
    notices: Vec<Notice>,
    observations: Vec<Observation>,
    ready_now: Vec<Delivery>,
}

/// A request that has not ended.
struct Open {
    spec: EngineRequest,
    accepted: Duration,
    deadline: Option<Duration>,
    sequences: BTreeSet<SequenceKey>,
    /// Its first chunk has been planned, or its KV adopted.
    begun: bool,
    /// Its first token has been sampled here.
    answered: bool,
}

impl Scheduler {
    /// `hasher` must have been made for the executor's page size, `page_tokens`.
    #[must_use]
    pub fn new(
        config: EngineConfig,
        executor: ExecutorLimits,
        page_tokens: u32,
        hasher: BlockHasher,
    ) -> Self {
        let pages = PageAllocator::new(executor.pages);
        let index = PrefixIndex::new(&pages);
        let slots = executor.slots.min(config.max_running);
        let executor = ExecutorLimits { slots, ..executor };
        Self {
            limits: RequestLimits::new(executor, page_tokens),
            config,
            executor,
            page_tokens,
            hasher,
            pages,
            index,
            requests: BTreeMap::new(),
            sequences: BTreeMap::new(),
            queue: BTreeSet::new(),
            running: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            free_slots: (0..slots).rev().map(SlotId).collect(),
            in_flight: VecDeque::new(),
            copied: Vec::new(),
            page_starved: false,
            last_step: 0,
            last_sequence: 0,
            last_admission: 0,
            notices: Vec::new(),
            observations: Vec::new(),
            ready_now: Vec::new(),
        }
    }

    /// See [`PageAllocator::wake_on_return`].
    pub(crate) fn wake_on_return(&self, wake: Wake) {
        self.pages.wake_on_return(move || wake());
    }

    /// The bounds that requests must keep.
    #[must_use]
    pub fn limits(&self) -> RequestLimits {
        self.limits
    }

    /// Accepts a request under a key that was never used.
    ///
    /// # Errors
    /// [`RequestError::QueueFull`].
    pub fn submit(
        &mut self,
        key: RequestKey,
        request: CheckedRequest,
        now: Duration,
    ) -> Result<(), RequestError> {
        let waiting = self.waiting_requests();
        if waiting >= self.config.max_waiting {
            return Err(RequestError::QueueFull { waiting });
        }
        let spec = request.into_inner();
        tracing::debug!(request = %spec.id, key = key.0, prompt = spec.prompt.len(), choices = spec.choices.len(),
            work = ?spec.work, "accepted");
        let deadline = spec.deadline.map(|left| now.saturating_add(left));
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, key));
        }
        self.notify(
            key,
            EngineEvent::Queued {
                requests_ahead: waiting as u32,
            },
        );
        let open = Open {
            spec,
            accepted: now,
            deadline,
            sequences: BTreeSet::new(),
            begun: false,
            answered: false,
        };
        let sequences = self.first_sequences(key, &open);
        self.requests.insert(key, open);
        for sequence in sequences {
            let id = sequence.rank.sequence;
            self.queue.insert(sequence.rank);
            self.insert(sequence);
            self.begin_handoff(id);
        }
        Ok(())
    }

    /// Forgets a request in whatever phase it is. Its pages are free when the steps in flight are done.
    pub fn cancel(&mut self, key: RequestKey) {
        if let Some(open) = self.close(key) {
            tracing::debug!(request = %open.spec.id, key = key.0, "cancelled");
            self.observations.push(Observation::Ended(Ending::Cancelled));
        }
    }

    /// Ends the requests whose time is up.
    pub fn expire(&mut self, now: Duration) {
        while let Some(&(deadline, key)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            let Some(open) = self.requests.get(&key) else {
                self.deadlines.pop_first();
                continue;
            };
            let mut choices: Vec<u32> = Vec::new();
            for sequence in open.sequences.iter().filter_map(|id| self.sequences.get(id)) {
                choices.push(sequence.choice);
                choices.extend(&sequence.forks);
            }
            for choice in choices {
                self.observations
                    .push(Observation::Ended(Ending::Finished(FinishReason::Deadline)));
                let reason = FinishReason::Deadline;
                self.notify(
                    key,
                    EngineEvent::Finished {
                        choice,
                        reason,
                        stop_token: None,
                    },
                );
            }
            self.mark_last(key);
            self.close(key);
        }
    }

    /// When [`Scheduler::expire`] has something to do next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// What happened since the last call, in order.
    pub fn take_events(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// What happened since the last call, for metrics.
    pub fn take_observations(&mut self) -> Vec<Observation> {
        std::mem::take(&mut self.observations)
    }

    /// KV found in the cache that sinks wait for: all layers of it are final.
    pub fn take_ready(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.ready_now)
    }

    /// No request is open and no step in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.in_flight.is_empty()
    }

    // === requests and sequences ===

    /// One sequence for all choices if nothing has been emitted, else one for each.
    fn first_sequences(&mut self, key: RequestKey, open: &Open) -> Vec<Sequence> {
        let spec = &open.spec;
        let cap = self.limits.length_cap(spec);
        let held = match spec.work {
            Work::Prefill { held_pages, .. } => held_pages,
            Work::Generate | Work::GenerateFromHandoff { .. } => 0,
        };
        let mut start = |choice: &ChoiceStart| {
            self.last_sequence += 1;
            let id = SequenceKey(self.last_sequence);
            let rank = Rank::new((spec.priority, self.config.aging()), open.accepted, key, id);
            let tokens = [&spec.prompt, choice.emitted.as_slice()].concat();
            let mut sequence = Sequence::new(rank, key, choice.index, tokens, cap);
            sequence.undelivered = held;
            sequence
        };
        if spec.choices.iter().any(|choice| !choice.emitted.is_empty()) {
            return spec.choices.iter().map(start).collect();
        }
        let mut leader = start(&spec.choices[0]);
        leader.forks = spec.choices[1..].iter().map(|choice| choice.index).collect();
        vec![leader]
    }

    fn insert(&mut self, sequence: Sequence) {
        let id = sequence.rank.sequence;
        if let Some(open) = self.requests.get_mut(&sequence.request) {
            open.sequences.insert(id);
        }
        self.sequences.insert(id, sequence);
    }

    /// Takes a sequence out; its pages go back when it is dropped.
    fn remove(&mut self, id: SequenceKey) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&id)?;
        self.queue.remove(&sequence.rank);
        self.running.remove(&sequence.rank);
        if let Some(running) = sequence.running_mut() {
            self.free_slots.append(&mut running.slots);
        }
        if let Some(open) = self.requests.get_mut(&sequence.request) {
            open.sequences.remove(&id);
        }
        Some(sequence)
    }

    /// Takes a request out, with all its sequences.
    fn close(&mut self, key: RequestKey) -> Option<Open> {
        let open = self.requests.remove(&key)?;
        for id in &open.sequences {
            self.remove(*id);
        }
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        Some(open)
    }

    /// Ends a request that cannot go on.
    fn fail(&mut self, key: RequestKey, error: RequestError) {
        if let Some(open) = self.close(key) {
            tracing::debug!(request = %open.spec.id, key = key.0, %error, "failed");
            self.observations.push(Observation::Ended(Ending::Failed));
            self.notify(key, EngineEvent::Failed(error));
            self.mark_last(key);
        }
    }

    fn notify(&mut self, request: RequestKey, event: EngineEvent) {
        self.notices.push(Notice {
            request,
            event,
            lease: None,
            last: false,
        });
    }

    /// The newest event of the request was its last.
    fn mark_last(&mut self, key: RequestKey) {
        if let Some(notice) = self.notices.iter_mut().rfind(|notice| notice.request == key) {
            notice.last = true;
        }
    }

    /// Requests without a running sequence.
    fn waiting_requests(&self) -> usize {
        let runs = |id: &SequenceKey| {
            self.sequences
                .get(id)
                .is_some_and(|found| found.running().is_some())
        };
        self.requests
            .values()
            .filter(|open| !open.sequences.iter().any(runs))
            .count()
    }
}
