//! The callers' side of an engine: any thread, any number of clones.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use baton_kernels::kv::KvMemory;
use parking_lot::RwLock;
use tokio::sync::{mpsc, watch};

use crate::{
    executor::ExecutorLimits,
    inbox::{Inbox, Intent, RequestLink, Submission},
    load::EngineLoad,
    metrics::EngineMetrics,
    request::{EngineEvent, EngineRequest, RequestError},
    scheduler::{RequestKey, RequestLimits},
    step::TokenLogprobs,
};

/// Talks to an engine thread.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) shared: Arc<Shared>,
}

/// One open request. Dropping it cancels the request: its pages come back within one turn of the engine's loop.
pub struct RequestHandle {
    link: Arc<RequestLink>,
    shared: Arc<Shared>,
    events: mpsc::Receiver<Envelope>,
    /// The last event has been read: nothing is left to cancel.
    ended: bool,
}

/// The first token of a choice, sampled by a prefill worker.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstToken {
    /// Index of the choice, as in [`ChoiceStart`](crate::request::ChoiceStart).
    pub choice: u32,
    pub token: u32,
    /// Where the request's sampling asks for them.
    pub logprobs: Option<TokenLogprobs>,
}

pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) load: RwLock<EngineLoad>,
    pub(crate) memory: Arc<dyn KvMemory>,
    pub(crate) executor: ExecutorLimits,
    pub(crate) limits: RequestLimits,
    pub(crate) max_waiting: usize,
    pub(crate) event_capacity: usize,
    pub(crate) metrics: EngineMetrics,
    pub(crate) exit: watch::Receiver<Option<Exit>>,
    pub(crate) next_key: AtomicU64,
}

/// How the engine thread ended.
#[derive(Clone, Debug)]
pub(crate) enum Exit {
    /// As asked.
    Stopped,
    Failed(String),
}

/// An event, and the lease that it belongs to, so that one that was given up meanwhile is not delivered.
pub(crate) struct Envelope {
    pub(crate) event: EngineEvent,
    pub(crate) lease: Option<u64>,
    pub(crate) last: bool,
}

impl EngineHandle {
    /// Hands a request to the engine. Whatever can be refused at once is refused here.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn submit(&self, request: EngineRequest) -> Result<RequestHandle, RequestError> {
        self.try_submit(request)
            .inspect_err(|error| self.shared.metrics.refused(error))
    }

    fn try_submit(&self, request: EngineRequest) -> Result<RequestHandle, RequestError> {
        let request = self.shared.limits.check(request)?;
        let key = RequestKey(self.shared.next_key.fetch_add(1, Ordering::Relaxed));
        let link = Arc::new(RequestLink::new(key));
        let (sender, events) = mpsc::channel(self.shared.event_capacity);
        let submission = Submission {
            request,
            link: Arc::clone(&link),
            events: sender,
        };
        self.shared.inbox.submit(submission, self.shared.max_waiting)?;
        Ok(RequestHandle {
            link,
            shared: Arc::clone(&self.shared),
            events,
            ended: false,
        })
    }

    /// How busy the engine is, as of its last step.
    #[must_use]
    pub fn load(&self) -> EngineLoad {
        *self.shared.load.read()
    }

    /// The engine's KV pages, for transports.
    #[must_use]
    pub fn kv_memory(&self) -> Arc<dyn KvMemory> {
        Arc::clone(&self.shared.memory)
    }

    #[must_use]
    pub fn limits(&self) -> ExecutorLimits {
        self.shared.executor
    }

    /// Refuses new requests and lets the open ones finish. Then the thread ends, see [`EngineHandle::stopped`].
    pub fn drain(&self) {
        self.shared.inbox.drain();
    }

    /// Resolves when the engine thread has ended: with the reason, if that was a failure.
    pub async fn stopped(&self) -> Option<String> {
        let mut exit = self.shared.exit.clone();
        match exit.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(Exit::Failed(reason))) => Some(reason.clone()),
            Ok(Some(Exit::Stopped)) => None,
            Ok(None) | Err(_) => Some("the engine thread vanished".into()),
        }
    }
}

impl RequestHandle {
    /// The next event; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<EngineEvent> {
        loop {
            let Some(envelope) = self.events.recv().await else {
                return self.stopped_early();
            };
            if self.link.blocked.swap(false, Ordering::AcqRel) {
                self.shared.inbox.touch(&self.link, |_| ());
            }
            self.ended |= envelope.last;
            match envelope.lease {
                Some(lease) if !self.link.is_current(lease) => {}
                _ => return Some(envelope.event),
            }
        }
    }

    /// The engine ended and may not have been able to say so.
    fn stopped_early(&mut self) -> Option<EngineEvent> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        let reason = match &*self.shared.exit.borrow() {
            Some(Exit::Failed(reason)) => reason.clone(),
            Some(Exit::Stopped) | None => "it was stopped".into(),
        };
        Some(EngineEvent::Failed(RequestError::EngineStopped(reason)))
    }

    /// The prefill worker has started: asks for the missing pages, which come with [`EngineEvent::Leased`].
    pub fn lease(&self) {
        let lease = self.link.next_lease();
        self.shared
            .inbox
            .touch(&self.link, |controls| controls.next = Some(Intent::Lease(lease)));
    }

    /// The hand-off failed: the leased pages go back, and the request waits as after [`EngineEvent::NeedsHandoff`].
    /// A [`EngineEvent::Leased`] that has not been read yet is not delivered any more.
    pub fn release_lease(&self) {
        self.link.give_up_lease();
        self.shared
            .inbox
            .touch(&self.link, |controls| match controls.next {
                Some(Intent::Lease(_)) => controls.next = None,
                _ => controls.release = true,
            });
    }

    /// The leased pages hold the prompt's KV: decoding begins after these tokens, one for each choice. They
    /// are the caller's already and are not sent back; one that ends its choice does so at once.
    pub fn adopt(&self, first: Vec<FirstToken>) {
        self.shared
            .inbox
            .touch(&self.link, |controls| controls.next = Some(Intent::Adopt(first)));
    }

    /// No prefill worker could be had: gives up the lease, if there is one, and runs the prompt on this engine.
    pub fn prefill_here(&self) {
        self.link.give_up_lease();
        self.shared
            .inbox
            .touch(&self.link, |controls| controls.next = Some(Intent::PrefillHere));
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.ended {
            self.shared
                .inbox
                .touch(&self.link, |controls| controls.cancelled = true);
        }
    }
}
