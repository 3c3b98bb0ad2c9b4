//! The answers to a request, as they come.

use std::{pin::Pin, sync::Arc};

use futures::{Stream, StreamExt as _, stream::SelectAll};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Delta, Event, Finished, RequestContext, Route, Usage, run::CallState};
use crate::error::RequestError;

pub(super) type Events = Pin<Box<dyn Stream<Item = Result<Event, RequestError>> + Send>>;

/// Dropping it cancels the request on every worker.
pub struct Generation {
    context: RequestContext,
    call: Arc<CallState>,
    /// Of all prompts; empty after the end or an error.
    events: SelectAll<Events>,
    prompt_tokens: u32,
    completion_tokens: u32,
    times: Vec<AnswerTimes>,
    ended: bool,
    _permit: OwnedSemaphorePermit,
    _alive: TaskTrackerToken,
}

/// When an answer's tokens were shown.
#[derive(Clone, Copy, Default)]
struct AnswerTimes {
    first: Option<Instant>,
    last: Option<Instant>,
    /// Tokens shown after the first event.
    later_tokens: u32,
}

/// What a generation holds as long as it lives.
pub(super) struct Held {
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) alive: TaskTrackerToken,
}

impl Generation {
    pub(super) fn new(
        context: RequestContext,
        call: Arc<CallState>,
        prompts: Vec<Events>,
        prompt_tokens: u32,
        held: Held,
    ) -> Self {
        let answers = prompts.len() * call.choices as usize;
        Self {
            context,
            call,
            events: futures::stream::select_all(prompts),
            prompt_tokens,
            completion_tokens: 0,
            times: vec![AnswerTimes::default(); answers],
            ended: false,
            _permit: held.permit,
            _alive: held.alive,
        }
    }

    /// The next event; `None` after the last answer has finished, and after an error.
    pub async fn next(&mut self) -> Option<Result<Event, RequestError>> {
        if self.ended {
            return None;
        }
        let event = self.events.next().await;
        match &event {
            Some(Ok(Event::Delta(delta))) => self.shown(delta),
            Some(Ok(Event::Finished(finished))) => self.finished(finished),
            Some(Err(error)) => {
                self.end();
                self.context.fail(error);
            }
            None => {
                self.end();
                self.context.succeed();
                self.log();
            }
        }
        event
    }

    #[must_use]
    pub fn request_id(&self) -> &str {
        &self.context.request_id
    }

    /// Complete once [`Generation::next`] has returned `None`.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.call.cached_tokens.lock().iter().sum(),
        }
    }

    /// The workers as far as they are known; complete with the first event.
    #[must_use]
    pub fn route(&self) -> Route {
        self.call.route.lock().clone()
    }

    fn shown(&mut self, delta: &Delta) {
        let is_first = self.times.iter().all(|times| times.first.is_none());
        let Some(times) = self.times.get_mut(delta.choice as usize) else {
            return;
        };
        let now = Instant::now();
        let tokens = u32::try_from(delta.ids.len()).unwrap_or(u32::MAX);
        match times.last {
            None => {
                times.first = Some(now);
                if is_first {
                    self.call
                        .metrics
                        .ttft
                        .observe((now - self.context.arrived).as_secs_f64());
                }
            }
            Some(last) => {
                times.later_tokens += tokens;
                self.call
                    .metrics
                    .itl
                    .observe((now - last).as_secs_f64() / f64::from(tokens.max(1)));
            }
        }
        times.last = Some(now);
    }

    fn finished(&mut self, finished: &Finished) {
        self.completion_tokens += finished.tokens;
        let Some(times) = self.times.get(finished.choice as usize) else {
            return;
        };
        if let (Some(first), Some(last), 1..) = (times.first, times.last, times.later_tokens) {
            self.call
                .metrics
                .tpot
                .observe((last - first).as_secs_f64() / f64::from(times.later_tokens));
        }
    }

    fn end(&mut self) {
        self.ended = true;
        // Whatever other prompts still run is cancelled.
        self.events = SelectAll::new();
        let usage = self.usage();
        self.call.metrics.prompt_tokens.inc_by(usage.prompt_tokens.into());
        self.call
            .metrics
            .completion_tokens
            .inc_by(usage.completion_tokens.into());
        self.call.metrics.cached_tokens.inc_by(usage.cached_tokens.into());
    }

    fn log(&self) {
        let (usage, route) = (self.usage(), self.route());
        self.context.span.in_scope(|| {
            tracing::info!(
                prompt_tokens = usage.prompt_tokens,
                completion_tokens = usage.completion_tokens,
                cached_tokens = usage.cached_tokens,
                seconds = self.context.arrived.elapsed().as_secs_f64(),
                decode = route.decode,
                prefill = route.prefill,
                "request done"
            );
        });
    }
}
