//! What the engine thread does over and over: take in, poll, plan, send out.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    executor::{Executor, ExecutorError, Ticket},
    handle::{Envelope, Shared},
    inbox::{Intent, RequestLink, Submission},
    load::EngineLoad,
    metrics::EngineMetrics,
    outbox::{Flushed, Outbox},
    request::{EngineEvent, FinishReason, RequestError},
    scheduler::{BadOutcome, Delivery, Ending, Observation, Planned, RequestKey, Scheduler, StepSummary},
};

/// How long the thread sleeps at most while nothing runs: whatever can change that wakes it.
const IDLE_POLL: Duration = Duration::from_secs(1);
/// How long it sleeps at most while a step runs, should an executor forget to wake it.
const STEP_POLL: Duration = Duration::from_millis(50);
/// Weight of the newest step in smoothed rates.
const SMOOTHING: f64 = 0.2;

/// The state of an engine thread.
pub(crate) struct Turns {
    executor: Box<dyn Executor>,
    scheduler: Scheduler,
    shared: Arc<Shared>,
    outboxes: HashMap<RequestKey, Outbox>,
    in_flight: VecDeque<Submitted>,
    layers: u32,
    started: Instant,
    steps: u64,
    rates: Rates,
    was_idle: bool,
}

/// Why the thread ends before it is asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error("the executor broke its contract: {0}")]
    Outcome(#[from] BadOutcome),
}

struct Submitted {
    ticket: Ticket,
    deliveries: Vec<Delivery>,
    /// Layers of these that the sinks know of.
    layers_named: u32,
}

#[derive(Default)]
struct Rates {
    prefill_tokens_per_second: f64,
    decode_step_seconds: f64,
}

enum Next {
    /// Something may be waiting already.
    Again,
    Sleep(Duration),
    End,
}

impl Turns {
    pub(crate) fn new(executor: Box<dyn Executor>, scheduler: Scheduler, shared: Arc<Shared>) -> Self {
        Self {
            layers: executor.limits().layers,
            executor,
            scheduler,
            shared,
            outboxes: HashMap::new(),
            in_flight: VecDeque::new(),
            started: Instant::now(),
            steps: 0,
            rates: Rates::default(),
            was_idle: true,
        }
    }

    /// Returns when asked to stop, or drained.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        loop {
            match self.turn()? {
                Next::Again => {}
                Next::Sleep(limit) => thread::park_timeout(limit),
                Next::End => return Ok(()),
            }
        }
    }

    /// Tells every open request that the engine is gone. What does not fit into a request's channel is made up by its
    /// handle, which finds the channel closed.
    pub(crate) fn abandon(&mut self, reason: &RequestError) {
        let arrivals = self.shared.inbox.close(reason.clone());
        for submission in arrivals.submissions {
            self.outboxes.insert(
                submission.link.key,
                Outbox::new(submission.link, submission.events),
            );
        }
        for outbox in self.outboxes.values_mut() {
            outbox.push(Envelope {
                event: EngineEvent::Failed(reason.clone()),
                lease: None,
                last: true,
            });
            outbox.flush();
        }
    }

    fn turn(&mut self) -> Result<Next, Failure> {
        let arrivals = self.shared.inbox.take();
        if arrivals.stopping {
            return Ok(Next::End);
        }
        for submission in arrivals.submissions {
            self.submit(submission);
        }
        for link in arrivals.touched {
            self.obey(&link);
        }
        let polled = self.poll()?;
        let now = self.now();
        self.scheduler.expire(now);
        let planned = self.plan()?;
        self.send_out();
        self.observe();
        if arrivals.draining && self.scheduler.is_idle() && self.outboxes.is_empty() {
            return Ok(Next::End);
        }
        if polled || planned {
            return Ok(Next::Again);
        }
        Ok(Next::Sleep(self.patience()))
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            request,
            link,
            events,
        } = submission;
        let key = link.key;
        let mut outbox = Outbox::new(link, events);
        let now = self.now();
        if let Err(error) = self.scheduler.submit(key, request, now) {
            self.shared.metrics.refused(&error);
            outbox.push(Envelope {
                event: EngineEvent::Failed(error),
                lease: None,
                last: true,
            });
            if outbox.flush() == Flushed::Done {
                return;
            }
        }
        self.outboxes.insert(key, outbox);
    }

    /// Does what the owner of a request wants.
    fn obey(&mut self, link: &RequestLink) {
        let controls = link.take();
        let key = link.key;
        if controls.cancelled {
            self.scheduler.cancel(key);
            self.outboxes.remove(&key);
            return;
        }
        if controls.release {
            self.scheduler.release_lease(key);
        }
        match controls.next {
            Some(Intent::Lease(lease)) => self.scheduler.lease(key, lease),
            Some(Intent::Adopt(first)) => {
                let now = self.now();
                self.scheduler.adopt(key, &first, now);
            }
            Some(Intent::PrefillHere) => self.scheduler.prefill_here(key),
            None => {}
        }
        // It may have been touched because there is room for events.
        self.flush(key);
    }

    /// Takes in the outcomes that are there. Returns whether there were any.
    fn poll(&mut self) -> Result<bool, Failure> {
        let mut polled = false;
        while let Some(submitted) = self.in_flight.front_mut() {
            let outcome = self.executor.poll(&submitted.ticket)?;
            let layers = match outcome {
                Some(_) => self.layers,
                None => self.executor.layers_done(&submitted.ticket).min(self.layers),
            };
            for layer in submitted.layers_named..layers {
                for delivery in &submitted.deliveries {
                    delivery.sink.ready(layer, &delivery.pages);
                }
            }
            submitted.layers_named = submitted.layers_named.max(layers);
            let Some(outcome) = outcome else {
                break;
            };
            self.in_flight.pop_front();
            let now = self.now();
            let summary = self.scheduler.apply(outcome, now)?;
            self.count(summary);
            polled = true;
        }
        Ok(polled)
    }

    fn plan(&mut self) -> Result<bool, Failure> {
        let mut planned_any = false;
        let now = self.now();
        while let Some(Planned { plan, deliveries }) = self.scheduler.plan(now) {
            let ticket = self.executor.submit(plan)?;
            self.in_flight.push_back(Submitted {
                ticket,
                deliveries,
                layers_named: 0,
            });
            planned_any = true;
        }
        Ok(planned_any)
    }

    /// Events to readers, cached KV to sinks.
    fn send_out(&mut self) {
        for delivery in self.scheduler.take_ready() {
            for layer in 0..self.layers {
                delivery.sink.ready(layer, &delivery.pages);
            }
        }
        let mut keys: Vec<RequestKey> = Vec::new();
        for notice in self.scheduler.take_events() {
            if let Some(outbox) = self.outboxes.get_mut(&notice.request) {
                outbox.push(Envelope {
                    event: notice.event,
                    lease: notice.lease,
                    last: notice.last,
                });
                keys.push(notice.request);
            }
        }
        keys.dedup();
        for key in keys {
            self.flush(key);
        }
    }

    fn flush(&mut self, key: RequestKey) {
        if self
            .outboxes
            .get_mut(&key)
            .is_some_and(|outbox| outbox.flush() == Flushed::Done)
        {
            self.outboxes.remove(&key);
            // Ends it if nobody reads; if it ended by itself, there is nothing left to cancel.
            self.scheduler.cancel(key);
        }
    }

    fn observe(&mut self) {
        let metrics = &self.shared.metrics;
        for observation in self.scheduler.take_observations() {
            record(metrics, observation);
        }
        let load = EngineLoad {
            steps: self.steps,
            prefill_tokens_per_second: self.rates.prefill_tokens_per_second,
            decode_step_seconds: self.rates.decode_step_seconds,
            draining: self.shared.inbox.is_draining(),
            ..self.scheduler.load()
        };
        self.shared.inbox.set_waiting(load.waiting as usize);
        metrics.show(&load);
        *self.shared.load.write() = load;
        let is_idle = self.scheduler.is_idle();
        if is_idle && !self.was_idle {
            self.check_conservation();
        }
        self.was_idle = is_idle;
    }

    /// Cheap enough when there is nothing else to do, and a leak would show here first.
    fn check_conservation(&self) {
        let pages = self.scheduler.check_pages();
        if pages.is_err() || !self.scheduler.is_consistent() {
            self.shared.metrics.conservation_errors.inc();
            tracing::error!(
                ?pages,
                "the idle engine's pages or slots do not add up: this is a defect, please report it"
            );
            debug_assert!(false, "conservation: {pages:?}");
        }
    }

    fn count(&mut self, summary: StepSummary) {
        self.steps += 1;
        let metrics = &self.shared.metrics;
        metrics.step_seconds.observe(summary.seconds);
        metrics.batch_rows.observe(f64::from(summary.rows));
        metrics.prefill_tokens.inc_by(u64::from(summary.prefill_tokens));
        metrics.decode_tokens.inc_by(u64::from(summary.output_tokens));
        if summary.seconds <= 0.0 {
            return;
        }
        let smooth = |rate: &mut f64, value: f64| {
            *rate = if *rate == 0.0 {
                value
            } else {
                *rate + SMOOTHING * (value - *rate)
            };
        };
        if summary.prefill_tokens > 0 {
            let rate = f64::from(summary.prefill_tokens) / summary.seconds;
            smooth(&mut self.rates.prefill_tokens_per_second, rate);
        } else {
            smooth(&mut self.rates.decode_step_seconds, summary.seconds);
        }
    }

    fn patience(&self) -> Duration {
        let patience = if self.in_flight.is_empty() {
            IDLE_POLL
        } else {
            STEP_POLL
        };
        match self.scheduler.next_deadline() {
            Some(deadline) => patience.min(deadline.saturating_sub(self.now())),
            None => patience,
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

fn record(metrics: &EngineMetrics, observation: Observation) {
    match observation {
        Observation::Begun(queued) => metrics.queue_seconds.observe(queued.as_secs_f64()),
        Observation::Looked {
            queried_tokens,
            hit_tokens,
        } => {
            metrics.prefix_queried_tokens.inc_by(u64::from(queried_tokens));
            metrics.prefix_hit_tokens.inc_by(u64::from(hit_tokens));
        }
        Observation::FirstToken(waited) => metrics.ttft_seconds.observe(waited.as_secs_f64()),
        Observation::Output { gap, tokens } => {
            metrics
                .itl_seconds
                .observe(gap.as_secs_f64() / f64::from(tokens.max(1)));
        }
        Observation::Preempted => metrics.preemptions.inc(),
        Observation::Ended(ending) => {
            let reason = match ending {
                Ending::Finished(FinishReason::Stop) => "stop",
                Ending::Finished(FinishReason::Length) => "length",
                Ending::Finished(FinishReason::Deadline) => "deadline",
                Ending::HandedOff => "handed_off",
                Ending::Cancelled => "cancelled",
                Ending::Failed => "failed",
            };
            metrics.finished.with_label_values(&[reason]).inc();
        }
    }
}
