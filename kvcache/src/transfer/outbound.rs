//! The sending side, on the prefill worker.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use baton_kernels::kv::KvMemory;
use baton_proto::{TransferId, v1::KvTarget};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    LinkIdentity, Sent, TransferConfig, TransferError, TransferMetrics,
    link_client::{LinkClient, hello},
    local::LocalSender,
    metrics::EndMetrics,
    outbound_link::OutboundLink,
    sending::{LiveTransfers, Outcome, Sending},
};
use crate::PagePin;

/// All transfers out of one KV memory, and one link for each worker that they go to. Links open on demand, and open
/// anew for the next transfer after they were lost. Dropping it closes them.
pub struct Outbound {
    memory: Arc<dyn KvMemory>,
    identity: LinkIdentity,
    config: TransferConfig,
    metrics: EndMetrics,
    live: Arc<LiveTransfers>,
    shutdown: CancellationToken,
    /// By worker id.
    links: Mutex<HashMap<String, Arc<OutboundLink>>>,
    this: Weak<Self>,
    _local: LocalSender,
}

/// One transfer. Dropping it aborts the transfer and tells the receiver.
pub struct OutboundTransfer {
    sink: Arc<OutboundSink>,
    config: TransferConfig,
    outcome: oneshot::Receiver<Outcome>,
}

/// Where the engine says which slices are ready. Pages stay pinned until the transfer has ended; after that, what it is
/// told goes nowhere.
pub struct OutboundSink {
    sending: Arc<Sending>,
    /// None if the transfer never began.
    link: Option<Arc<OutboundLink>>,
}

// === impl Outbound ===

impl Outbound {
    #[must_use]
    pub fn new(
        memory: Arc<dyn KvMemory>,
        identity: LinkIdentity,
        config: &TransferConfig,
        metrics: &TransferMetrics,
    ) -> Arc<Self> {
        let metrics = metrics.outbound();
        Arc::new_cyclic(|this| Self {
            memory,
            _local: LocalSender::enter(&identity),
            identity,
            config: config.clone(),
            live: LiveTransfers::new(config.max_transfers, metrics.clone()),
            metrics,
            shutdown: CancellationToken::new(),
            links: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    /// Begins to send the sequence's pages `first_page..end_page`, all layers, as the sink names them and the receiver
    /// leases its pages. Opens the link if there is none. Call it inside a tokio runtime.
    ///
    /// Past `max_transfers`, or with an id that is live, the transfer has failed from the start.
    pub fn start(
        self: &Arc<Self>,
        target: &KvTarget,
        transfer: TransferId,
        first_page: u32,
        end_page: u32,
    ) -> OutboundTransfer {
        let pages = first_page..end_page.max(first_page);
        let refused = |outcome| {
            let (sending, outcome) = Sending::refused(transfer, pages.clone(), outcome);
            (Arc::new(sending), None, outcome)
        };
        let (sending, link, outcome) = if pages.is_empty() {
            refused(Ok(Sent {
                bytes: 0,
                seconds: 0.0,
            }))
        } else {
            match self.live.enter(transfer) {
                Err(refusal) => refused(Err(refusal)),
                Ok(live) => {
                    let layers = self.memory.layout().layers as u32;
                    let (sending, outcome) = Sending::new(pages, layers, live);
                    let sending = Arc::new(sending);
                    let link = self.link_for(target, &sending);
                    (sending, Some(link), outcome)
                }
            }
        };
        OutboundTransfer {
            sink: Arc::new(OutboundSink { sending, link }),
            config: self.config.clone(),
            outcome,
        }
    }

    /// Transfers that are open.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Closes all links, which aborts all transfers. A later transfer fails.
    pub fn close(&self) {
        self.shutdown.cancel();
    }

    /// A link that has ended is not used again.
    pub(super) fn forget(&self, link: &Arc<OutboundLink>) {
        let mut links = self.links.lock();
        if links
            .get(&link.target.worker_id)
            .is_some_and(|it| Arc::ptr_eq(it, link))
        {
            links.remove(&link.target.worker_id);
        }
    }

    /// The link to this worker, with the transfer entered.
    fn link_for(&self, target: &KvTarget, sending: &Arc<Sending>) -> Arc<OutboundLink> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(&target.worker_id) {
            if link.target == *target {
                if link.enter(sending) {
                    return Arc::clone(link);
                }
            } else {
                link.close(link.lost(format!("the worker moved to {}", target.kv_link_addr)));
            }
        }
        let (control, up) = mpsc::channel(self.config.control_queue);
        control
            .try_send(hello(&self.identity, self.config.transport))
            .expect("the queue is new, and validate() asks for room");
        let link = Arc::new(OutboundLink::new(
            target.clone(),
            self.shutdown.child_token(),
            control,
        ));
        if !link.enter(sending) {
            // Shutting down: nothing will run the link.
            link.end(sending, Err(link.lost("this worker is shutting down")));
            return link;
        }
        links.insert(target.worker_id.clone(), Arc::clone(&link));
        let client = LinkClient {
            link: Arc::clone(&link),
            outbound: Weak::clone(&self.this),
            memory: Arc::clone(&self.memory),
            config: self.config.clone(),
            metrics: self.metrics.clone(),
        };
        tokio::spawn(client.run(up));
        link
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

// === impl OutboundTransfer ===

impl OutboundTransfer {
    #[must_use]
    pub fn id(&self) -> TransferId {
        self.sink.sending.id
    }

    #[must_use]
    pub fn sink(&self) -> Arc<OutboundSink> {
        Arc::clone(&self.sink)
    }

    /// Resolves when the receiver has acknowledged every slice. It may wait for the engine and for the receiver's grant
    /// without a limit of its own; once all is sent, the acknowledgement must come within the lease timeout.
    ///
    /// # Errors
    /// [`TransferError`] if the transfer ended before.
    pub async fn complete(mut self) -> Result<Sent, TransferError> {
        let timeout = self.config.lease_timeout();
        loop {
            let overdue = self.sink.sending.ack_expiry(timeout);
            let wake = overdue.unwrap_or_else(|| Instant::now() + timeout);
            tokio::select! {
                biased;
                outcome = &mut self.outcome => return outcome.unwrap_or(Err(TransferError::Dropped)),
                () = sleep_until(wake) => {}
            }
            if overdue.is_some() {
                self.sink.end(TransferError::Expired {
                    timeout_ms: self.config.lease_timeout_ms,
                    missing: 0,
                });
            }
        }
    }
}

impl Drop for OutboundTransfer {
    fn drop(&mut self) {
        self.sink.end(TransferError::Dropped);
    }
}

impl fmt::Debug for OutboundTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OutboundTransfer")
            .field(&self.sink.sending.id)
            .finish()
    }
}

// === impl OutboundSink ===

impl OutboundSink {
    /// The slices of `layer` of these pages are final. `pages` pairs each page's index in the sequence with a pin. Never
    /// blocks. Pages outside of the transfer, and slices named before, are ignored.
    pub fn ready(&self, layer: u32, pages: &[(u32, PagePin)]) {
        if self.sending.ready(layer, pages)
            && let Some(link) = &self.link
        {
            link.queue(Arc::clone(&self.sending));
        }
    }

    fn end(&self, cause: TransferError) {
        if let Some(link) = &self.link {
            link.end(&self.sending, Err(cause));
        }
    }
}

impl fmt::Debug for OutboundSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OutboundSink").field(&self.sending.id).finish()
    }
}
