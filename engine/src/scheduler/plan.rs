//! What the next step runs.

use std::{fmt, mem, sync::Arc, time::Duration};

use baton_kvcache::PagePin;

use super::{
    Scheduler, chunks,
    room::Promised,
    sequence::{Opening, Phase, Progress, Rank, Running, Sequence, SequenceKey},
};
use crate::{
    request::{KvSink, Work},
    step::{PageCopy, Row, RowStart, RowTokens, SlotId, SlotOpen, StepId, StepPlan},
};

/// A step to submit.
#[derive(Debug)]
pub struct Planned {
    pub plan: StepPlan,
    /// KV that becomes final in this step, layer by layer as
    /// [`Executor::layers_done`](crate::executor::Executor::layers_done) advances.
    pub deliveries: Vec<Delivery>,
}

/// Pages to name to the sink of a prefill.
#[derive(Clone)]
pub struct Delivery {
    pub sink: Arc<dyn KvSink>,
    /// As for [`KvSink::ready`].
    pub pages: Vec<(u32, PagePin)>,
}

/// A step whose outcome is unknown.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) step: StepId,
    pub(super) rows: Vec<PlannedRow>,
}

/// What a row's outcome is for.
#[derive(Debug)]
pub(super) struct PlannedRow {
    pub(super) sequence: SequenceKey,
    /// The outcome is discarded if the sequence has been preempted since.
    pub(super) admission: u64,
    /// As in [`Row::sample`].
    pub(super) sample: Vec<SlotId>,
    pub(super) query_len: u32,
    pub(super) kind: RowKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// More of the prompt, up to this position. The last chunk samples.
    Chunk {
        end: u32,
    },
    Decode,
}

/// A row for which pages are still to be found.
struct Draft {
    rank: Rank,
    work: DraftWork,
}

enum DraftWork {
    Chunk { start: u32, tokens: u32 },
    Decode { start: RowStart, reach: u32 },
}

impl Scheduler {
    /// The next step, or none: because enough steps are in flight, or nothing can run before a step, a caller or a
    /// transfer does its part.
    pub fn plan(&mut self, now: Duration) -> Option<Planned> {
        if self.in_flight.len() >= self.executor.steps_in_flight.max(1) {
            return None;
        }
        self.expire(now);
        loop {
            self.page_starved = self.admit(now);
            let planned = self.plan_rows();
            if planned.is_some() || !self.in_flight.is_empty() || !self.break_standstill() {
                return planned;
            }
        }
    }

    fn plan_rows(&mut self) -> Option<Planned> {
        let step = StepId(self.last_step + 1);
        let mut planned = Planned {
            plan: StepPlan {
                step,
                opened: Vec::new(),
                copies: Vec::new(),
                rows: Vec::new(),
            },
            deliveries: Vec::new(),
        };
        let mut flight = InFlight {
            step,
            rows: Vec::new(),
        };
        let mut promised = Promised::default();
        for draft in self.drafts() {
            self.plan_row(&draft, &mut promised, &mut planned, &mut flight);
        }
        self.page_starved |= promised.any();
        if flight.rows.is_empty() {
            return None;
        }
        self.last_step = step.0;
        self.in_flight.push_back(flight);
        // From here on, pages that are given back may be named by this step.
        self.pages.submitted(step.0);
        self.copied.clear();
        Some(planned)
    }

    /// In order of rank: all decode rows, and chunks of the prompts from what these leave of the budget.
    fn drafts(&self) -> Vec<Draft> {
        let mut drafts = Vec::new();
        let mut prompts = Vec::new();
        for rank in &self.running {
            let sequence = &self.sequences[&rank.sequence];
            let Some(running) = sequence.running() else {
                continue;
            };
            match running.progress {
                Progress::Prompt { next } => prompts.push((*rank, next, sequence.len() - next)),
                Progress::Output(ahead) => {
                    if let Some(row) = self.decode_row(sequence, ahead) {
                        let (start, reach) = (row.start, row.reach);
                        drafts.push(Draft {
                            rank: *rank,
                            work: DraftWork::Decode { start, reach },
                        });
                    }
                }
            }
        }
        let decoding = drafts.len() as u32;
        let remaining: Vec<u32> = prompts.iter().map(|(_, _, remaining)| *remaining).collect();
        let parts = chunks::share(&remaining, self.config.max_batch_tokens.saturating_sub(decoding));
        for ((rank, start, _), tokens) in prompts.into_iter().zip(parts) {
            if tokens > 0 {
                drafts.push(Draft {
                    rank,
                    work: DraftWork::Chunk { start, tokens },
                });
            }
        }
        drafts.sort_by_key(|draft| draft.rank);
        drafts
    }

    /// Finds the pages of one row, shortening or dropping it where there are too few, and adds it to the plan.
    fn plan_row(
        &mut self,
        draft: &Draft,
        promised: &mut Promised,
        planned: &mut Planned,
        flight: &mut InFlight,
    ) {
        let id = draft.rank.sequence;
        // It may have been preempted for a row before this one.
        let Some(running) = self.sequences.get(&id).and_then(Sequence::running) else {
            return;
        };
        let reach = match draft.work {
            DraftWork::Chunk { start, tokens } => start + tokens,
            DraftWork::Decode { reach, .. } => reach,
        };
        let borrowed = u32::from(running.table.has_borrowed());
        let wanted = self.pages_for(reach).saturating_sub(running.table.len()) + borrowed;
        let pages = self.take_pages(wanted, draft.rank, promised);
        let page_tokens = self.page_tokens;
        let Some(mut sequence) = self.sequences.remove(&id) else {
            return;
        };
        if let Phase::Running(running) = &mut sequence.phase {
            let mut pages = pages.into_iter();
            pages
                .by_ref()
                .take((wanted - borrowed) as usize)
                .for_each(|page| running.table.push(page));
            // Last, so that a page is copied only in a step that has the row.
            if let Some(page) = pages.next() {
                let to = page.id();
                if let Some(pin) = running.table.replace_borrowed(page) {
                    planned.plan.copies.push(PageCopy { from: pin.id(), to });
                    // Not reused before the step that copies it is known to the allocator.
                    self.copied.push(pin);
                }
            }
            let covered = running.table.len() * page_tokens;
            let row = match draft.work {
                DraftWork::Chunk { start, tokens } => {
                    let tokens = tokens.min(covered.saturating_sub(start));
                    (tokens > 0).then(|| chunk_row(&sequence.tokens, running, start, tokens))
                }
                DraftWork::Decode { start, reach } => {
                    let complete = covered >= reach && !running.table.has_borrowed();
                    complete.then(|| self.decode_row_of(running, start))
                }
            };
            if let Some((row, kind)) = row {
                flight.rows.push(PlannedRow {
                    sequence: id,
                    admission: running.admission,
                    sample: row.sample.clone(),
                    query_len: row.query_len(),
                    kind,
                });
                planned.plan.rows.push(row);
                self.open_slots(&mut sequence, &mut planned.plan);
                if let RowKind::Chunk { end } = kind {
                    self.deliver_computed(&mut sequence, end, planned);
                }
            }
        }
        self.sequences.insert(id, sequence);
    }

    fn decode_row_of(&self, running: &mut Running, start: RowStart) -> (Row, RowKind) {
        if let Progress::Output(ahead) = &mut running.progress {
            ahead.rows += 1;
            ahead.drafts += self.executor.tokens_per_sample - 1;
        }
        let row = Row {
            slot: running.slots[0],
            start,
            tokens: RowTokens::LastOutput,
            pages: running.table.ids(),
            sample: vec![running.slots[0]],
        };
        (row, RowKind::Decode)
    }

    /// Binds the slots of a sequence that has its first row, its forks' too.
    fn open_slots(&self, sequence: &mut Sequence, plan: &mut StepPlan) {
        let Some(open) = self.requests.get(&sequence.request) else {
            return;
        };
        let output = &sequence.tokens[open.spec.prompt.len()..];
        let choices: Vec<u32> = [&[sequence.choice], sequence.forks.as_slice()].concat();
        let Phase::Running(running) = &mut sequence.phase else {
            return;
        };
        if mem::replace(&mut running.opening, Opening::Done) == Opening::Done {
            return;
        }
        for (slot, choice) in running.slots.iter().zip(choices) {
            plan.opened.push(SlotOpen {
                slot: *slot,
                choice,
                sampling: Arc::clone(&open.spec.sampling),
                prompt: Arc::clone(&open.spec.prompt),
                output: output.to_vec(),
            });
        }
    }

    /// Names to a prefill's sink the pages that a chunk completes; the last chunk completes all.
    fn deliver_computed(&self, sequence: &mut Sequence, end: u32, planned: &mut Planned) {
        let Some(open) = self.requests.get(&sequence.request) else {
            return;
        };
        let complete = if end == sequence.len() {
            self.pages_for(end)
        } else {
            end / self.page_tokens
        };
        let (Work::Prefill { sink, .. }, Some(running)) = (&open.spec.work, sequence.running()) else {
            return;
        };
        if sequence.undelivered < complete {
            planned.deliveries.push(Delivery {
                sink: Arc::clone(sink),
                pages: running.table.pins(sequence.undelivered, complete),
            });
            sequence.undelivered = complete;
        }
    }
}

fn chunk_row(tokens: &[u32], running: &mut Running, start: u32, len: u32) -> (Row, RowKind) {
    let end = start + len;
    let is_last = end as usize == tokens.len();
    running.progress = if is_last {
        Progress::Output(super::sequence::Ahead { rows: 1, drafts: 0 })
    } else {
        Progress::Prompt { next: end }
    };
    let row = Row {
        slot: running.slots[0],
        start: RowStart::Known(start),
        tokens: RowTokens::Host(tokens[start as usize..end as usize].to_vec()),
        pages: running.table.ids(),
        sample: if is_last {
            running.slots.clone()
        } else {
            Vec::new()
        },
    };
    (row, RowKind::Chunk { end })
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}
