//! What a finished step means for its sequences.

use std::time::Duration;

use super::{
    Ending, Observation, RequestKey, Scheduler,
    plan::{PlannedRow, RowKind},
    sequence::{Ahead, Opening, Phase, Progress, Running, SequenceKey},
};
use crate::{
    request::{EngineEvent, FinishReason},
    step::{Sampled, SlotId, StepId, StepOutcome},
};

/// What a finished step did, for rates and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepSummary {
    pub rows: u32,
    /// Prompt tokens computed.
    pub prefill_tokens: u32,
    /// Tokens that became output.
    pub output_tokens: u32,
    pub seconds: f64,
}

/// The executor broke its contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOutcome {
    #[error("outcome of step {found:?}, expected {expected:?}")]
    Order { found: StepId, expected: Option<StepId> },
    #[error("step {step:?} sampled for other slots than planned, near {slot:?}")]
    Slots { step: StepId, slot: Option<SlotId> },
    #[error("step {step:?} sampled {tokens} tokens for {slot:?}")]
    Count {
        step: StepId,
        slot: SlotId,
        tokens: usize,
    },
}

impl Scheduler {
    /// Takes in the outcome of the oldest step in flight.
    ///
    /// # Errors
    /// [`BadOutcome`] if it does not fit the plan; then the executor cannot be relied on.
    pub fn apply(&mut self, outcome: StepOutcome, now: Duration) -> Result<StepSummary, BadOutcome> {
        self.check(&outcome)?;
        let mut summary = StepSummary {
            seconds: outcome.seconds,
            ..StepSummary::default()
        };
        let Some(flight) = self.in_flight.pop_front() else {
            return Ok(summary);
        };
        self.pages.reclaim();
        self.pages.completed(flight.step.0);
        let mut sampled = outcome.sampled.into_iter();
        for row in flight.rows {
            summary.rows += 1;
            if let RowKind::Chunk { .. } = row.kind {
                summary.prefill_tokens += row.query_len;
            }
            let of_row: Vec<Sampled> = sampled.by_ref().take(row.sample.len()).collect();
            summary.output_tokens += self.apply_row(&row, of_row, now);
        }
        Ok(summary)
    }

    fn check(&self, outcome: &StepOutcome) -> Result<(), BadOutcome> {
        let step = outcome.step;
        let flight = self.in_flight.front().filter(|flight| flight.step == step);
        let Some(flight) = flight else {
            let expected = self.in_flight.front().map(|flight| flight.step);
            return Err(BadOutcome::Order {
                found: step,
                expected,
            });
        };
        let mut sampled = outcome.sampled.iter();
        for row in &flight.rows {
            let most = match row.kind {
                RowKind::Chunk { .. } => 1,
                RowKind::Decode => self.executor.tokens_per_sample as usize,
            };
            for slot in &row.sample {
                let Some(found) = sampled.next().filter(|found| found.slot == *slot) else {
                    return Err(BadOutcome::Slots {
                        step,
                        slot: Some(*slot),
                    });
                };
                let tokens = found.tokens.len();
                if tokens == 0 || tokens > most {
                    return Err(BadOutcome::Count {
                        step,
                        slot: *slot,
                        tokens,
                    });
                }
            }
        }
        match sampled.next() {
            None => Ok(()),
            Some(extra) => Err(BadOutcome::Slots {
                step,
                slot: Some(extra.slot),
            }),
        }
    }

    /// Returns how many tokens became output.
    fn apply_row(&mut self, row: &PlannedRow, sampled: Vec<Sampled>, now: Duration) -> u32 {
        // The sequence may have ended or been preempted while the row was in flight: then the row was for nothing.
        let Some(running) = self
            .sequences
            .get_mut(&row.sequence)
            .and_then(|found| found.running_mut())
        else {
            return 0;
        };
        if running.admission != row.admission {
            return 0;
        }
        if let (Progress::Output(ahead), false) = (&mut running.progress, row.sample.is_empty()) {
            ahead.rows -= 1;
            if row.kind == RowKind::Decode {
                ahead.drafts -= self.executor.tokens_per_sample - 1;
            }
        }
        let mut ids = vec![row.sequence];
        if let RowKind::Chunk { end } = row.kind {
            self.seal(row.sequence, end);
            if !row.sample.is_empty() {
                ids.extend(self.fork(row.sequence));
            }
        }
        ids.into_iter()
            .zip(sampled)
            .map(|(id, sampled)| self.accept(id, sampled, now))
            .sum()
    }

    /// The choices that shared a prompt go on by themselves, in the slots that sampled for them.
    fn fork(&mut self, id: SequenceKey) -> Vec<SequenceKey> {
        let page_tokens = self.page_tokens;
        let Some(leader) = self.sequences.get_mut(&id) else {
            return Vec::new();
        };
        let choices = std::mem::take(&mut leader.forks);
        let Phase::Running(running) = &mut leader.phase else {
            return Vec::new();
        };
        let slots = running.slots.split_off(1);
        let admission = running.admission;
        let mut forks = Vec::new();
        for (choice, slot) in choices.into_iter().zip(slots) {
            self.last_sequence += 1;
            let Some(running) = leader.running() else {
                break;
            };
            let phase = Phase::Running(Running {
                slots: vec![slot],
                opening: Opening::Done,
                table: running.table.fork(leader.len(), page_tokens),
                admission,
                progress: Progress::Output(Ahead::default()),
            });
            forks.push(leader.fork(SequenceKey(self.last_sequence), choice, phase));
        }
        forks
            .into_iter()
            .map(|fork| {
                let id = fork.rank.sequence;
                self.running.insert(fork.rank);
                self.insert(fork);
                id
            })
            .collect()
    }

    /// Appends sampled tokens, as far as they count, and ends the sequence where they say so.
    fn accept(&mut self, id: SequenceKey, sampled: Sampled, now: Duration) -> u32 {
        let Sampled {
            mut tokens,
            mut logprobs,
            ..
        } = sampled;
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return 0;
        };
        let request = sequence.request;
        let Some(open) = self.requests.get_mut(&request) else {
            return 0;
        };
        if !std::mem::replace(&mut open.answered, true) {
            let waited = now.saturating_sub(open.accepted);
            self.observations.push(Observation::FirstToken(waited));
        } else if let Some(last) = sequence.last_output {
            let gap = now.saturating_sub(last);
            let tokens = tokens.len() as u32;
            self.observations.push(Observation::Output { gap, tokens });
        }
        sequence.last_output = Some(now);
        let choice = sequence.choice;
        if matches!(open.spec.work, crate::request::Work::Prefill { .. }) {
            // Whether such a first token is also the last is for the decode worker to say.
            self.observations.push(Observation::Ended(Ending::HandedOff));
            self.notify(
                request,
                EngineEvent::Tokens {
                    choice,
                    tokens,
                    logprobs,
                },
            );
            self.end_sequence(id);
            return 1;
        }
        tokens.truncate((sequence.cap - sequence.len()) as usize);
        let stop_at = tokens
            .iter()
            .position(|token| open.spec.stop.stop_tokens.contains(token));
        let stop = stop_at.map(|at| tokens[at]);
        tokens.truncate(stop_at.unwrap_or(tokens.len()));
        logprobs.truncate(tokens.len());
        sequence.tokens.extend(&tokens);
        let is_full = sequence.len() >= sequence.cap;
        // The KV of the last token is written only when it is the input of a row; a stop token follows on one that was.
        let computed = sequence.len() - u32::from(stop.is_none());
        let count = tokens.len() as u32;
        if count > 0 {
            self.notify(
                request,
                EngineEvent::Tokens {
                    choice,
                    tokens,
                    logprobs,
                },
            );
        }
        self.seal(id, computed);
        if let Some(stop) = stop {
            self.finish(id, FinishReason::Stop, Some(stop));
        } else if is_full {
            self.finish(id, FinishReason::Length, None);
        }
        count
    }

    /// Seals the full pages among the first `computed` positions.
    fn seal(&mut self, id: SequenceKey, computed: u32) {
        let full = computed / self.page_tokens;
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let (Some(open), Some(running)) = (self.requests.get(&sequence.request), sequence.running()) else {
            return;
        };
        if running.table.sealed() >= full {
            return;
        }
        let hashes = sequence
            .hashes(full, &self.hasher, open.spec.scope, self.page_tokens)
            .to_vec();
        if let Some(running) = sequence.running_mut() {
            running.table.seal(&hashes, &mut self.index);
        }
    }

    /// One choice has its last token.
    pub(super) fn finish(&mut self, id: SequenceKey, reason: FinishReason, stop_token: Option<u32>) {
        let Some(sequence) = self.sequences.get(&id) else {
            return;
        };
        let (request, choice) = (sequence.request, sequence.choice);
        self.observations
            .push(Observation::Ended(Ending::Finished(reason)));
        self.notify(
            request,
            EngineEvent::Finished {
                choice,
                reason,
                stop_token,
            },
        );
        self.end_sequence(id);
    }

    /// Takes out a sequence, and its request with the last one.
    fn end_sequence(&mut self, id: SequenceKey) {
        let Some(request) = self.remove(id).map(|sequence| sequence.request) else {
            return;
        };
        if self.is_over(request) {
            self.mark_last(request);
            if let Some(open) = self.close(request) {
                tracing::debug!(request = %open.spec.id, key = request.0, "ended");
            }
        }
    }

    fn is_over(&self, key: RequestKey) -> bool {
        self.requests
            .get(&key)
            .is_some_and(|open| open.sequences.is_empty())
    }
}
