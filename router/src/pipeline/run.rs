//! One prompt, from its plan to the end of its last answer, over as many workers as it takes.

use std::{future::Future, sync::Arc, time::Duration};

use async_stream::stream;
use baton_proto::{
    TraceContext,
    v1::{
        Choice, DecodeEvent, DecodeRequest, FinishReason, PrefillCandidate, Sampling, Stop,
        decode_event::Event as Sent,
    },
};
use futures::Stream;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    Event, Route,
    answer::{Answer, AnswerSettings},
};
use crate::{
    error::RequestError,
    metrics::RouterMetrics,
    policy::{Candidate, Plan},
    registry::{Assignment, Registry, Worker},
    text::TextError,
    upstream::{self, Failure, FailureKind},
};

/// What all prompts of a request have in common.
#[derive(Debug)]
pub(super) struct CallState {
    pub(super) model: String,
    pub(super) sampling: Sampling,
    pub(super) answers: AnswerSettings,
    pub(super) choices: u32,
    pub(super) cache_salt: String,
    pub(super) priority: i32,
    pub(super) trace: TraceContext,
    pub(super) deadline: Instant,
    /// The whole time that the request was given, for its error.
    pub(super) timeout: Duration,
    pub(super) retry_after: u64,
    pub(super) max_attempts: usize,
    pub(super) abort: CancellationToken,
    pub(super) registry: Arc<Registry>,
    pub(super) metrics: RouterMetrics,
    /// For each prompt, how many of its tokens were found in a prefix cache.
    pub(super) cached_tokens: Mutex<Vec<u32>>,
    pub(super) route: Mutex<Route>,
}

/// One prompt of a request.
#[derive(Debug)]
pub(super) struct PromptRun {
    pub(super) call: Arc<CallState>,
    /// Among the prompts of the request.
    pub(super) index: u32,
    /// Unique among the prompts in work.
    pub(super) request_id: String,
    pub(super) prompt_ids: Vec<u32>,
    pub(super) stop: Stop,
    pub(super) plan: Plan,
}

/// How one worker's call ended, when it did not end the run.
enum Ended {
    /// Every answer is complete.
    Complete,
    Failed(Failure),
    /// Nothing more can be done.
    Fatal(RequestError),
}

impl CallState {
    /// Waits for `work`, but not longer than the request or the router lives.
    pub(super) async fn bounded<T>(&self, work: impl Future<Output = T>) -> Result<T, RequestError> {
        // A timer rounds up to its next tick; a request whose time is over does not use it.
        if Instant::now() >= self.deadline {
            return Err(RequestError::Deadline(self.timeout));
        }
        tokio::select! {
            biased;
            () = self.abort.cancelled() => Err(RequestError::ShuttingDown { retry_after: self.retry_after }),
            () = sleep_until(self.deadline) => Err(RequestError::Deadline(self.timeout)),
            value = work => Ok(value),
        }
    }
}

impl PromptRun {
    /// The events of the prompt's answers. Ends after the last, or with the error that ended them all; dropping it
    /// cancels the worker.
    pub(super) fn events(self) -> impl Stream<Item = Result<Event, RequestError>> + Send {
        stream! {
            let mut broken = 0;
            let mut last_failure: Option<Failure> = None;
            for candidate in &self.plan.decode {
                // A worker that has left since the plan was made is no attempt.
                let Some(worker) = self.call.registry.get(&candidate.worker_id, candidate.incarnation) else {
                    continue;
                };
                if let Some(failure) = &last_failure {
                    self.tell_retry(failure, &candidate.worker_id);
                }
                let mut shown = false;
                let mut answers = self.answers();
                let ended = {
                    let _load = self.assign(candidate, &worker);
                    let request = self.request(candidate, &answers);
                    let opened = self.call.bounded(upstream::open(&worker, request, &self.call.trace)).await;
                    match opened {
                        Err(error) => Ended::Fatal(error),
                        Ok(Err(failure)) => Ended::Failed(failure),
                        Ok(Ok(mut sent)) => loop {
                            let events = match self.call.bounded(sent.message()).await {
                                Err(error) => break Ended::Fatal(error),
                                Ok(Err(status)) => break Ended::Failed(Failure::of(&candidate.worker_id, &status)),
                                Ok(Ok(None)) => break Ended::Failed(Failure::cut_short(&candidate.worker_id)),
                                Ok(Ok(Some(event))) => match self.apply(&mut answers, event) {
                                    Err(error) => break Ended::Fatal(error),
                                    Ok(events) => events,
                                },
                            };
                            for event in events {
                                shown = true;
                                yield Ok(event);
                            }
                            if answers.iter().all(Answer::is_finished) {
                                break Ended::Complete;
                            }
                        },
                    }
                };
                match ended {
                    Ended::Complete => return,
                    Ended::Fatal(error) => {
                        yield Err(error);
                        return;
                    }
                    Ended::Failed(failure) => {
                        broken += usize::from(matches!(failure.kind, FailureKind::Lost | FailureKind::Failed));
                        if shown || !failure.is_retried() || broken >= self.call.max_attempts {
                            yield Err(failure.into_request_error(self.call.timeout, self.call.retry_after));
                            return;
                        }
                        last_failure = Some(failure);
                    }
                }
            }
            yield Err(match last_failure {
                Some(failure) => failure.into_request_error(self.call.timeout, self.call.retry_after),
                None => RequestError::WorkersBusy {
                    detail: "the workers of the plan have left".to_owned(),
                    retry_after: self.call.retry_after,
                },
            });
        }
    }

    fn tell_retry(&self, failure: &Failure, next: &str) {
        tracing::warn!(
            request_id = self.request_id,
            trace_id = format_args!("{:032x}", self.call.trace.trace_id),
            worker_id = failure.worker_id,
            reason = failure.reason(),
            detail = failure.detail,
            next,
            "trying the next worker"
        );
        self.call
            .metrics
            .retries
            .with_label_values(&[failure.reason()])
            .inc();
    }

    fn answers(&self) -> Vec<Answer> {
        let first = self.index * self.call.choices;
        (first..first + self.call.choices)
            .map(|choice| Answer::new(choice, &self.prompt_ids, &self.call.answers))
            .collect()
    }

    fn assign(&self, candidate: &Candidate, worker: &Arc<Worker>) -> [Option<Assignment>; 2] {
        let tokens = u32::try_from(self.prompt_ids.len()).unwrap_or(u32::MAX);
        let prefill = self
            .plan
            .prefill_for(candidate)
            .next()
            .and_then(|first| self.call.registry.get(&first.worker_id, first.incarnation));
        [
            Some(worker.assign(tokens)),
            prefill.map(|worker| worker.assign(tokens)),
        ]
    }

    fn request(&self, candidate: &Candidate, answers: &[Answer]) -> DecodeRequest {
        let choices = (0..).zip(answers).map(|(index, answer)| Choice {
            index,
            emitted_ids: answer.emitted().to_vec(),
        });
        let prefill = self.plan.prefill_for(candidate).map(|prefill| PrefillCandidate {
            worker_id: prefill.worker_id.clone(),
            addr: prefill.addr.clone(),
        });
        DecodeRequest {
            request_id: self.request_id.clone(),
            model: self.call.model.clone(),
            prompt_ids: self.prompt_ids.clone(),
            choices: choices.collect(),
            sampling: Some(self.call.sampling.clone()),
            stop: Some(self.stop.clone()),
            cache_salt: self.call.cache_salt.clone(),
            adapter: String::new(),
            deadline_ms: Some(upstream::deadline_ms(
                self.call.deadline.saturating_duration_since(Instant::now()),
            )),
            priority: self.call.priority,
            prefill: prefill.collect(),
            remote_prefill_min_tokens: self.plan.remote_prefill_min_tokens,
        }
    }

    /// What an event of the worker means for the answers.
    fn apply(&self, answers: &mut [Answer], event: DecodeEvent) -> Result<Vec<Event>, RequestError> {
        let internal = |error: TextError| RequestError::Internal(error.to_string());
        let event = match event.event {
            // From a newer worker.
            None => return Ok(Vec::new()),
            Some(event) => event,
        };
        match event {
            Sent::Accepted(accepted) => {
                self.first_route(|route| route.decode = Some(accepted.worker_id));
                Ok(Vec::new())
            }
            Sent::Prefilled(prefilled) => {
                self.first_route(|route| route.prefill = Some(prefilled.worker_id));
                // Set, not added: another attempt may say it again.
                if let Some(cached) = self.call.cached_tokens.lock().get_mut(self.index as usize) {
                    *cached = prefilled.cached_tokens;
                }
                Ok(Vec::new())
            }
            Sent::Tokens(tokens) => match answers.get_mut(tokens.choice as usize) {
                Some(answer) => answer.push(&tokens.ids, &tokens.logprobs).map_err(internal),
                None => Err(unknown_choice(tokens.choice)),
            },
            Sent::Finished(finished) if finished.reason() == FinishReason::Deadline => {
                Err(RequestError::Deadline(self.call.timeout))
            }
            Sent::Finished(finished) => match answers.get_mut(finished.choice as usize) {
                Some(answer) => answer
                    .end(finished.reason(), finished.stop_token_id)
                    .map_err(internal),
                None => Err(unknown_choice(finished.choice)),
            },
        }
    }

    fn first_route(&self, change: impl FnOnce(&mut Route)) {
        if self.index == 0 {
            change(&mut self.call.route.lock());
        }
    }
}

fn unknown_choice(choice: u32) -> RequestError {
    RequestError::Internal(format!(
        "the worker answered choice {choice}, which was not asked for"
    ))
}
