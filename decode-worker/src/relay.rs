//! The life of one request on its decode worker.
//!
//! ```text
//! Accepted -> Prompt ----------------------------------> Decoding -> Ended
//!                |  ^                                       ^
//!                v  | no candidate left: prefill here       |
//!             HandingOff -- first tokens and KV: adopt -----+
//!                '--- failed: the next candidate
//! ```
//! Everything that the request holds (engine request with its pages, call to the prefill worker, inbound transfer,
//! place among the open requests) is owned by the [`Relay`], which is owned by the response stream: when the caller
//! goes away, all of it goes at once. Nothing runs ahead of the reader, so nothing needs a queue: a slow reader's tokens
//! are joined by the engine.

use std::{collections::VecDeque, sync::Arc};

use baton_engine::{
    RequestHandle,
    request::{EngineEvent, FinishReason},
    step::TokenLogprobs,
};
use baton_proto::{
    TraceContext,
    v1::{
        Accepted, DecodeEvent, DecodeRequest, FirstToken, PrefillCandidate, Prefilled, Tokens,
        decode_event::Event,
    },
};
use baton_worker::{Intake, Permit, ServeError, random, wire};
use futures::{Stream, stream};
use tokio::time::Instant;
use tonic::Status;
use tracing::{Instrument as _, Span};

use crate::{
    forwarded::{Compared, Forwarded},
    handoff::{Delivery, Errand, Handoff, HandoffError, Peers, Progress},
};

pub(crate) struct Relay {
    runner: Runner,
    phase: Phase,
    forwarded: Forwarded,
    /// Events that one step of the relay yielded, on their way out: a few at most.
    outbox: VecDeque<Event>,
}

/// What a request runs with.
pub(crate) struct Runner {
    pub(crate) intake: Intake,
    pub(crate) peers: Arc<Peers>,
    pub(crate) handle: RequestHandle,
    /// Its place among the open requests, held until the end.
    pub(crate) _permit: Permit,
    pub(crate) request: DecodeRequest,
    /// Prefill workers that have not been tried, best first.
    pub(crate) candidates: VecDeque<PrefillCandidate>,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: TraceContext,
    pub(crate) page_tokens: u32,
}

enum Phase {
    Accepted,
    /// The engine looks into its own cache, and runs the prompt unless it asks for a hand-off.
    Prompt(Option<LocalPrompt>),
    HandingOff {
        handoff: Box<Handoff>,
        held_pages: u32,
    },
    Decoding,
    Ended,
}

/// The engine runs the prompt here.
#[derive(Clone, Copy)]
struct LocalPrompt {
    started: Instant,
    cached_tokens: u32,
    queue_seconds: f64,
}

impl Relay {
    pub(crate) fn new(runner: Runner) -> Self {
        Self {
            runner,
            phase: Phase::Accepted,
            forwarded: Forwarded::default(),
            outbox: VecDeque::new(),
        }
    }

    /// The events for the router.
    pub(crate) fn into_stream(self, span: Span) -> impl Stream<Item = Result<DecodeEvent, Status>> + Send {
        stream::unfold(self, move |mut relay| {
            let span = span.clone();
            async move {
                let item = relay.next().await?;
                Some((item, relay))
            }
            .instrument(span)
        })
    }

    async fn next(&mut self) -> Option<Result<DecodeEvent, Status>> {
        loop {
            if let Some(event) = self.outbox.pop_front() {
                return Some(Ok(DecodeEvent { event: Some(event) }));
            }
            if matches!(self.phase, Phase::Ended) {
                return None;
            }
            if let Err(error) = self.advance().await {
                tracing::warn!(%error, "request failed");
                self.runner.intake.count(&error);
                self.phase = Phase::Ended;
                return Some(Err(error.into()));
            }
        }
    }

    async fn advance(&mut self) -> Result<(), ServeError> {
        match &mut self.phase {
            Phase::Accepted => {
                let worker_id = self.runner.peers.target.worker_id.clone();
                self.outbox.push_back(Event::Accepted(Accepted { worker_id }));
                self.phase = Phase::Prompt(None);
                Ok(())
            }
            Phase::HandingOff { handoff, .. } => {
                tokio::select! {
                    event = self.runner.handle.next() => self.engine_said(event),
                    progress = handoff.next() => {
                        self.handoff_went(progress);
                        Ok(())
                    }
                }
            }
            Phase::Prompt(_) | Phase::Decoding => {
                let event = self.runner.handle.next().await;
                self.engine_said(event)
            }
            Phase::Ended => Ok(()),
        }
    }

    fn engine_said(&mut self, event: Option<EngineEvent>) -> Result<(), ServeError> {
        let Some(event) = event else {
            self.phase = Phase::Ended;
            return Ok(());
        };
        match (event, &mut self.phase) {
            (EngineEvent::NeedsHandoff { held_pages }, _) => self.hand_off(held_pages),
            (EngineEvent::Leased { first_page, pages }, Phase::HandingOff { handoff, .. }) => {
                handoff.grant(first_page, pages);
            }
            // A lease that was released while it was under way: the pins go back by being dropped.
            (EngineEvent::Leased { .. }, _) => {}
            (
                EngineEvent::Started {
                    cached_tokens,
                    queued,
                },
                Phase::Prompt(_) | Phase::HandingOff { .. },
            ) => {
                self.phase = Phase::Prompt(Some(LocalPrompt {
                    started: Instant::now(),
                    cached_tokens,
                    queue_seconds: queued.as_secs_f64(),
                }));
            }
            (
                EngineEvent::Tokens {
                    choice,
                    tokens,
                    logprobs,
                },
                _,
            ) => self.tokens(choice, tokens, logprobs),
            (
                EngineEvent::Finished {
                    choice,
                    reason,
                    stop_token,
                },
                _,
            ) => {
                // A deadline can end a prompt that has not run; a stop token cannot.
                if reason != FinishReason::Deadline {
                    self.prefilled_here();
                }
                self.outbox
                    .push_back(Event::Finished(wire::finished(choice, reason, stop_token)));
            }
            (EngineEvent::Failed(error), _) => return Err(error.into()),
            (EngineEvent::Queued { .. } | EngineEvent::Started { .. }, _) => {}
        }
        Ok(())
    }

    fn handoff_went(&mut self, progress: Result<Progress, HandoffError>) {
        match progress {
            Ok(Progress::Started) => self.runner.handle.lease(),
            Ok(Progress::FirstTokens(first)) => self.forward(&first),
            Ok(Progress::Complete(delivery)) => self.adopt(delivery),
            Err(error) => self.handoff_failed(&error),
        }
    }

    /// Sends a prefill worker's first tokens on, before their KV is here.
    fn forward(&mut self, first: &[FirstToken]) {
        for token in first {
            // Whether a token ends its choice is for the engine to say; it is not streamed in any case.
            if self.runner.stop_tokens.contains(&token.id) {
                continue;
            }
            match self.forwarded.offer(token.choice, token.id) {
                Compared::New => self.outbox.push_back(Event::Tokens(Tokens {
                    choice: token.choice,
                    ids: vec![token.id],
                    logprobs: token.logprobs.clone().into_iter().collect(),
                    prompt_logprobs: Vec::new(),
                })),
                Compared::Known => {}
                Compared::Contradiction { sent } => self.contradicted(token.choice, token.id, sent),
            }
        }
    }

    fn adopt(&mut self, delivery: Delivery) {
        let peers = &self.runner.peers;
        peers.metrics.prefills.with_label_values(&["remote"]).inc();
        let held_tokens = match &self.phase {
            Phase::HandingOff { held_pages, .. } => held_pages * self.runner.page_tokens,
            _ => 0,
        };
        tracing::debug!(
            prefill_worker = delivery.worker_id,
            bytes = delivery.received.bytes,
            seconds = delivery.received.seconds,
            "KV is here"
        );
        self.outbox.push_back(Event::Prefilled(Prefilled {
            worker_id: delivery.worker_id,
            cached_tokens: held_tokens.max(delivery.started.cached_tokens),
            handoff_bytes: delivery.received.bytes,
            queue_seconds: delivery.started.queue_seconds,
            prefill_seconds: delivery.prefill_seconds,
        }));
        self.phase = Phase::Decoding;
        let mut first: Vec<_> = delivery.first.iter().map(wire::adopted_token).collect();
        for first in &mut first {
            first.token = self.forwarded.adopted(first.choice, first.token);
        }
        self.runner.handle.adopt(first);
    }

    fn handoff_failed(&mut self, error: &HandoffError) {
        let Phase::HandingOff { handoff, held_pages } =
            std::mem::replace(&mut self.phase, Phase::Prompt(None))
        else {
            return;
        };
        tracing::warn!(prefill_worker = handoff.worker_id(), reason = %error, "hand-off failed");
        // First the transfer, so that nothing writes the pages any more, then the lease.
        drop(handoff);
        self.runner.handle.release_lease();
        let to = if self.runner.candidates.is_empty() {
            "local"
        } else {
            "candidate"
        };
        self.runner.peers.metrics.fallbacks.with_label_values(&[to]).inc();
        self.hand_off(held_pages);
    }

    /// Asks the next candidate for the prompt's KV; without one, runs the prompt here.
    fn hand_off(&mut self, held_pages: u32) {
        while let Some(candidate) = self.runner.candidates.pop_front() {
            let worker_id = candidate.worker_id.clone();
            let errand = Errand {
                request: &self.runner.request,
                candidate,
                held_pages,
                deadline: self.runner.deadline,
                trace: self.runner.trace.child(random::bits64()),
            };
            match Handoff::begin(&self.runner.peers, errand) {
                Ok(handoff) => {
                    self.phase = Phase::HandingOff {
                        handoff: Box::new(handoff),
                        held_pages,
                    };
                    return;
                }
                Err(error) => {
                    self.runner
                        .peers
                        .metrics
                        .handoffs
                        .with_label_values(&[error.kind()])
                        .inc();
                    tracing::warn!(prefill_worker = worker_id, reason = %error, "hand-off failed");
                }
            }
        }
        self.phase = Phase::Prompt(None);
        self.runner.handle.prefill_here();
    }

    fn tokens(&mut self, choice: u32, mut tokens: Vec<u32>, mut logprobs: Vec<TokenLogprobs>) {
        self.prefilled_here();
        let produced = tokens.first().copied();
        if let Compared::Contradiction { sent } = self.forwarded.settle(choice, &mut tokens, &mut logprobs) {
            self.contradicted(choice, produced.unwrap_or_default(), sent);
        }
        if !tokens.is_empty() {
            self.outbox
                .push_back(Event::Tokens(wire::tokens(choice, tokens, &logprobs)));
        }
    }

    /// The first output after a prompt that ran here says so.
    fn prefilled_here(&mut self) {
        if let Phase::Prompt(Some(local)) = self.phase {
            self.runner
                .peers
                .metrics
                .prefills
                .with_label_values(&["local"])
                .inc();
            self.outbox.push_back(Event::Prefilled(Prefilled {
                worker_id: self.runner.peers.target.worker_id.clone(),
                cached_tokens: local.cached_tokens,
                handoff_bytes: 0,
                queue_seconds: local.queue_seconds,
                prefill_seconds: local.started.elapsed().as_secs_f64(),
            }));
            self.phase = Phase::Decoding;
        }
    }

    fn contradicted(&self, choice: u32, produced: u32, sent: u32) {
        self.runner.peers.metrics.contradictions.inc();
        tracing::error!(
            choice,
            produced,
            sent,
            "two runs of one prompt chose different first tokens; the one sent stands"
        );
    }
}
