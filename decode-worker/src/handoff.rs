//! One attempt to have one prefill worker run a prompt and hand over its KV.
//!
//! Two things run side by side: the call, on which the prefill worker says how far it is, and the transfer, on which KV
//! arrives once pages are granted. The attempt is complete when both the first tokens and all KV are here. Dropping it
//! cancels the call and aborts the transfer.

use std::{mem, sync::Arc, time::Duration};

use baton_kvcache::{
    PagePin,
    transfer::{Inbound, Received, TransferError},
};
use baton_proto::{
    TraceContext, TransferId,
    v1::{
        DecodeRequest, FirstToken, KvTarget, PrefillCandidate, PrefillEvent, PrefillRequest, Started,
        prefill_client::PrefillClient, prefill_event::Event,
    },
};
use baton_worker::{
    ChannelPool,
    liveness::{Awaiting, AwaitingKv},
    random, trace,
};
use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::Instant;
use tonic::{Code, Request, Status, Streaming};

use crate::{config::DecodeConfig, metrics::DecodeMetrics};

/// What all hand-offs of a decode worker share.
pub(crate) struct Peers {
    pub(crate) inbound: Arc<Inbound>,
    pub(crate) channels: ChannelPool,
    /// This worker, as prefill workers reach it.
    pub(crate) target: KvTarget,
    pub(crate) vocab: u32,
    pub(crate) config: DecodeConfig,
    pub(crate) metrics: DecodeMetrics,
    pub(crate) awaiting_kv: AwaitingKv,
}

pub(crate) struct Handoff {
    peers: Arc<Peers>,
    candidate: PrefillCandidate,
    transfer: TransferId,
    call: Call,
    kv: Kv,
    /// Indexes of the choices, in the order of the request.
    choices: Vec<u32>,
    started: Option<Started>,
    first: Option<First>,
    begun: Instant,
    /// Until when the prefill worker may leave us waiting, where it is its turn.
    patience: Instant,
    outcome: &'static str,
    _awaiting: Awaiting,
}

/// Time for a prefill worker to end its call after the last of its KV.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a hand-off is for.
pub(crate) struct Errand<'a> {
    pub(crate) request: &'a DecodeRequest,
    pub(crate) candidate: PrefillCandidate,
    /// Leading pages of the prompt that are here already.
    pub(crate) held_pages: u32,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: TraceContext,
}

/// How a hand-off comes along.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The prompt runs: now its pages are to be leased.
    Started,
    FirstTokens(Vec<FirstToken>),
    Complete(Delivery),
}

/// A completed hand-off.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) worker_id: String,
    pub(crate) first: Vec<FirstToken>,
    pub(crate) started: Started,
    pub(crate) prefill_seconds: f64,
    pub(crate) received: Received,
}

/// Why a hand-off failed. None of these is the request's fault: it goes on elsewhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoffError {
    #[error("cannot be called: {0}")]
    Address(String),
    #[error("refuses: {0}")]
    Refused(String),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("gave up: {0}")]
    GaveUp(String),
    #[error("transfer: {0}")]
    Transfer(#[from] TransferError),
    #[error("left us waiting for {0}")]
    TimedOut(&'static str),
    #[error("broke the protocol: {0}")]
    Protocol(&'static str),
}

enum Call {
    Opening(BoxFuture<'static, Result<Streaming<PrefillEvent>, Status>>),
    Open(Box<Streaming<PrefillEvent>>),
    /// After `KvDone`.
    Done,
}

enum Kv {
    /// No pages granted yet.
    Ungranted,
    Arriving(BoxFuture<'static, Result<Received, TransferError>>),
    Here(Received),
}

struct First {
    tokens: Vec<FirstToken>,
    prefill_seconds: f64,
}

/// What can happen while a hand-off is under way.
enum Happened {
    Said(Result<Option<PrefillEvent>, Status>),
    Arrived(Result<Received, TransferError>),
    TimedOut,
}

impl Handoff {
    /// Calls the candidate, with a transfer id that no other attempt has.
    pub(crate) fn begin(peers: &Arc<Peers>, errand: Errand<'_>) -> Result<Self, HandoffError> {
        let transfer = random::transfer_id();
        let channel = peers
            .channels
            .get(&errand.candidate.addr)
            .map_err(|error| HandoffError::Address(error.to_string()))?;
        let mut call = Request::new(prefill_request(peers, &errand, transfer));
        trace::pass_on(&errand.trace, call.metadata_mut());
        let opening = async move {
            let response = PrefillClient::new(channel).run(call).await?;
            Ok(response.into_inner())
        };
        tracing::debug!(%transfer, prefill_worker = errand.candidate.worker_id, errand.held_pages, "hand-off begins");
        peers.metrics.handoffs_live.inc();
        let begun = Instant::now();
        Ok(Self {
            peers: Arc::clone(peers),
            candidate: errand.candidate,
            transfer,
            call: Call::Opening(opening.boxed()),
            kv: Kv::Ungranted,
            choices: errand.request.choices.iter().map(|choice| choice.index).collect(),
            started: None,
            first: None,
            begun,
            patience: begun + peers.config.start_timeout(),
            outcome: "cancelled",
            _awaiting: peers.awaiting_kv.enter(),
        })
    }

    pub(crate) fn worker_id(&self) -> &str {
        &self.candidate.worker_id
    }

    /// The engine leased pages: KV may come.
    pub(crate) fn grant(&mut self, first_page: u32, pages: Vec<PagePin>) {
        let transfer = self
            .peers
            .inbound
            .grant(&self.candidate.worker_id, self.transfer, first_page, pages);
        self.kv = Kv::Arriving(transfer.complete().boxed());
    }

    /// What happens next; nothing after [`Progress::Complete`] or an error. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Progress, HandoffError> {
        self.advance()
            .await
            .inspect_err(|error| self.outcome = error.kind())
    }

    async fn advance(&mut self) -> Result<Progress, HandoffError> {
        loop {
            if let Some(delivery) = self.delivery() {
                self.outcome = "done";
                self.call.see_off();
                self.peers
                    .metrics
                    .handoff_seconds
                    .observe(self.begun.elapsed().as_secs_f64());
                return Ok(Progress::Complete(delivery));
            }
            let waits_for = self.waits_for();
            let happened = tokio::select! {
                said = self.call.next() => Happened::Said(said),
                arrived = self.kv.arrive() => Happened::Arrived(arrived),
                () = tokio::time::sleep_until(self.patience), if waits_for.is_some() => Happened::TimedOut,
            };
            match happened {
                Happened::Said(said) => {
                    if let Some(progress) = self.said(said.map_err(HandoffError::from)?)? {
                        return Ok(progress);
                    }
                }
                Happened::Arrived(received) => {
                    self.kv = Kv::Here(received?);
                    self.patience = Instant::now() + self.peers.config.start_timeout();
                }
                Happened::TimedOut => return Err(HandoffError::TimedOut(waits_for.unwrap_or("nothing"))),
            }
        }
    }

    fn said(&mut self, event: Option<PrefillEvent>) -> Result<Option<Progress>, HandoffError> {
        let Some(event) = event else {
            return Err(HandoffError::Protocol("the stream ended before KvDone"));
        };
        match event.event {
            Some(Event::Started(started)) if self.started.is_none() => {
                self.started = Some(started);
                Ok(Some(Progress::Started))
            }
            Some(Event::FirstTokens(first)) if self.started.is_some() && self.first.is_none() => {
                if first.tokens.iter().any(|token| token.id >= self.peers.vocab) {
                    return Err(HandoffError::Protocol(
                        "a first token is outside of the vocabulary",
                    ));
                }
                if !first.tokens.iter().map(|token| &token.choice).eq(&self.choices) {
                    return Err(HandoffError::Protocol(
                        "there is not one first token for each choice",
                    ));
                }
                self.first = Some(First {
                    tokens: first.tokens.clone(),
                    prefill_seconds: first.prefill_seconds,
                });
                Ok(Some(Progress::FirstTokens(first.tokens)))
            }
            Some(Event::Started(_) | Event::FirstTokens(_)) => {
                Err(HandoffError::Protocol("events out of order"))
            }
            Some(Event::KvDone(_)) => {
                self.call = Call::Done;
                Ok(None)
            }
            // Queued asks for nothing; what has no event is from a newer version.
            Some(Event::Queued(_)) | None => Ok(None),
        }
    }

    /// What it is the prefill worker's turn to do, within our patience. While KV arrives, the transfer has a clock of
    /// its own; while pages are not leased yet, it is our turn.
    fn waits_for(&self) -> Option<&'static str> {
        match (&self.started, &self.kv, &self.first) {
            (None, ..) => Some("its turn in the queue"),
            (Some(_), Kv::Here(_), None) => Some("the first tokens"),
            _ => None,
        }
    }

    fn delivery(&mut self) -> Option<Delivery> {
        let (Some(started), Some(first), Kv::Here(received)) = (&self.started, &self.first, &self.kv) else {
            return None;
        };
        Some(Delivery {
            worker_id: self.candidate.worker_id.clone(),
            first: first.tokens.clone(),
            started: *started,
            prefill_seconds: first.prefill_seconds,
            received: *received,
        })
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        self.peers.metrics.handoffs_live.dec();
        self.peers
            .metrics
            .handoffs
            .with_label_values(&[self.outcome])
            .inc();
    }
}

impl Call {
    /// The prefill worker's next word. Cancel safe: what is awaited stays here.
    async fn next(&mut self) -> Result<Option<PrefillEvent>, Status> {
        loop {
            match self {
                Self::Opening(opening) => *self = Self::Open(Box::new(opening.await?)),
                Self::Open(stream) => return stream.message().await,
                Self::Done => return std::future::pending().await,
            }
        }
    }

    /// Listens to the rest of a call whose KV is here. The prefill worker has the acknowledgement still to read and
    /// `KvDone` to say: hanging up now would make a cancelled run of a good one.
    fn see_off(&mut self) {
        if let Self::Open(mut stream) = mem::replace(self, Self::Done) {
            tokio::spawn(tokio::time::timeout(FAREWELL, async move {
                while let Ok(Some(_)) = stream.message().await {}
            }));
        }
    }
}

impl Kv {
    async fn arrive(&mut self) -> Result<Received, TransferError> {
        match self {
            Self::Arriving(transfer) => transfer.await,
            Self::Ungranted | Self::Here(_) => std::future::pending().await,
        }
    }
}

impl HandoffError {
    /// The label of metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Address(_) => "address",
            Self::Refused(_) => "refused",
            Self::Unreachable(_) => "unreachable",
            Self::GaveUp(_) => "gave_up",
            Self::Transfer(_) => "transfer",
            Self::TimedOut(_) => "timed_out",
            Self::Protocol(_) => "protocol",
        }
    }
}

impl From<Status> for HandoffError {
    fn from(status: Status) -> Self {
        let message = format!("{:?}: {}", status.code(), status.message());
        match status.code() {
            Code::ResourceExhausted | Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition => {
                Self::Refused(message)
            }
            Code::Unavailable | Code::Unknown | Code::Cancelled => Self::Unreachable(message),
            _ => Self::GaveUp(message),
        }
    }
}

fn prefill_request(peers: &Peers, errand: &Errand<'_>, transfer: TransferId) -> PrefillRequest {
    let request = errand.request;
    let left = errand
        .deadline
        .map(|deadline| deadline.saturating_duration_since(Instant::now()));
    PrefillRequest {
        request_id: request.request_id.clone(),
        model: request.model.clone(),
        prompt_ids: request.prompt_ids.clone(),
        choices: request.choices.clone(),
        sampling: request.sampling.clone(),
        stop: request.stop.clone(),
        cache_salt: request.cache_salt.clone(),
        adapter: request.adapter.clone(),
        deadline_ms: left.map(|left| left.as_millis() as u64),
        priority: request.priority,
        transfer_id: transfer.to_bytes(),
        held_pages: errand.held_pages,
        target: Some(peers.target.clone()),
    }
}
