//! One prompt's life on a prefill worker: queued, started, first tokens, KV acknowledged.
//!
//! Dropping a [`Run`] cancels the engine's work and aborts the transfer: both are owned here and nowhere else.

use baton_engine::{
    FirstToken, RequestHandle,
    request::{EngineEvent, FinishReason},
};
use baton_kvcache::transfer::{OutboundTransfer, Sent, TransferError};
use baton_proto::v1::{FirstTokens, KvDone, PrefillEvent, Queued, Started, prefill_event::Event};
use baton_worker::{Permit, ServeError, wire};
use futures::{FutureExt as _, Stream, future::BoxFuture, stream};
use tokio::time::Instant;
use tonic::Status;
use tracing::{Instrument as _, Span};

use crate::metrics::PrefillMetrics;

pub(crate) struct Run {
    phase: Phase,
    handle: RequestHandle,
    transfer: BoxFuture<'static, Result<Sent, TransferError>>,
    /// Indexes of the choices, in the order of the request.
    choices: Vec<u32>,
    metrics: PrefillMetrics,
    _permit: Permit,
}

enum Phase {
    /// The engine has the prompt, or will have it.
    Prompt(Prompt),
    /// The first tokens are out; slices are still on their way.
    Sending {
        since: Instant,
        sent: Option<Sent>,
    },
    Ended,
}

#[derive(Default)]
struct Prompt {
    first: Vec<FirstToken>,
    started: Option<Instant>,
    /// The receiver may acknowledge the KV before the engine reports the tokens.
    sent: Option<Sent>,
}

/// What can happen while the prompt runs.
enum Happened {
    Engine(Option<EngineEvent>),
    Sent(Result<Sent, TransferError>),
}

impl Run {
    pub(crate) fn new(
        handle: RequestHandle,
        permit: Permit,
        transfer: OutboundTransfer,
        choices: Vec<u32>,
        metrics: PrefillMetrics,
    ) -> Self {
        Self {
            phase: Phase::Prompt(Prompt::default()),
            handle,
            transfer: transfer.complete().boxed(),
            choices,
            metrics,
            _permit: permit,
        }
    }

    /// The events for the decode worker. Driven by its reader: nothing is buffered here.
    pub(crate) fn into_stream(self, span: Span) -> impl Stream<Item = Result<PrefillEvent, Status>> + Send {
        stream::unfold(self, move |mut run| {
            let span = span.clone();
            async move {
                let item = run.next().await?;
                Some((item, run))
            }
            .instrument(span)
        })
    }

    async fn next(&mut self) -> Option<Result<PrefillEvent, Status>> {
        match self.advance().await {
            Ok(event) => event.map(|event| Ok(PrefillEvent { event: Some(event) })),
            Err(error) => {
                tracing::warn!(%error, "prefill gave up");
                self.end(error.kind());
                Some(Err(error.into()))
            }
        }
    }

    /// The next event; `None` after the last.
    async fn advance(&mut self) -> Result<Option<Event>, ServeError> {
        loop {
            match &mut self.phase {
                Phase::Prompt(prompt) => {
                    let happened = tokio::select! {
                        event = self.handle.next() => Happened::Engine(event),
                        result = &mut self.transfer, if prompt.sent.is_none() => Happened::Sent(result),
                    };
                    match happened {
                        Happened::Sent(result) => prompt.sent = Some(result.map_err(|error| failed(&error))?),
                        Happened::Engine(None) => {
                            return Err(ServeError::Internal(
                                "the engine ended a prompt without its first tokens",
                            ));
                        }
                        Happened::Engine(Some(EngineEvent::Queued { requests_ahead })) => {
                            return Ok(Some(Event::Queued(Queued { requests_ahead })));
                        }
                        Happened::Engine(Some(EngineEvent::Started {
                            cached_tokens,
                            queued,
                        })) => {
                            prompt.started = Some(Instant::now());
                            return Ok(Some(Event::Started(Started {
                                cached_tokens,
                                queue_seconds: queued.as_secs_f64(),
                            })));
                        }
                        Happened::Engine(Some(EngineEvent::Tokens {
                            choice,
                            tokens,
                            logprobs,
                        })) => {
                            prompt.first.extend(tokens.first().map(|token| FirstToken {
                                choice,
                                token: *token,
                                logprobs: logprobs.into_iter().next(),
                            }));
                            if prompt.first.len() == self.choices.len() {
                                let prompt = std::mem::take(prompt);
                                return Ok(Some(self.first_tokens(prompt)));
                            }
                        }
                        Happened::Engine(Some(EngineEvent::Finished {
                            reason: FinishReason::Deadline,
                            ..
                        })) => {
                            return Err(ServeError::Deadline);
                        }
                        Happened::Engine(Some(EngineEvent::Failed(error))) => return Err(error.into()),
                        Happened::Engine(Some(event)) => {
                            tracing::error!(?event, "no event of a prefill");
                            return Err(ServeError::Internal("the engine said what no prefill says"));
                        }
                    }
                }
                Phase::Sending { since, sent } => {
                    let sent = match sent.take() {
                        Some(sent) => sent,
                        None => (&mut self.transfer).await.map_err(|error| failed(&error))?,
                    };
                    self.metrics.tail_seconds.observe(since.elapsed().as_secs_f64());
                    tracing::debug!(bytes = sent.bytes, seconds = sent.seconds, "KV handed off");
                    self.end("done");
                    return Ok(Some(Event::KvDone(KvDone {
                        bytes: sent.bytes,
                        seconds: sent.seconds,
                    })));
                }
                Phase::Ended => return Ok(None),
            }
        }
    }

    /// All choices have their token: tells, and goes on to wait for the KV.
    fn first_tokens(&mut self, prompt: Prompt) -> Event {
        let Prompt {
            mut first,
            started,
            sent,
        } = prompt;
        let now = Instant::now();
        self.phase = Phase::Sending { since: now, sent };
        first.sort_by_key(|token| self.choices.iter().position(|choice| *choice == token.choice));
        let prefill_seconds = started.map_or(0.0, |started| (now - started).as_secs_f64());
        self.metrics.prompt_seconds.observe(prefill_seconds);
        Event::FirstTokens(FirstTokens {
            tokens: first.iter().map(wire::first_token).collect(),
            prompt_logprobs: Vec::new(),
            prefill_seconds,
        })
    }

    fn end(&mut self, outcome: &str) {
        self.phase = Phase::Ended;
        self.metrics.runs.with_label_values(&[outcome]).inc();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !matches!(self.phase, Phase::Ended) {
            self.end("cancelled");
        }
    }
}

fn failed(error: &TransferError) -> ServeError {
    ServeError::Handoff(error.to_string())
}
