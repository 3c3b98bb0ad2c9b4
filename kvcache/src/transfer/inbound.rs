//! The receiving side, on the decode worker.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use baton_kernels::kv::KvMemory;
use baton_proto::TransferId;
use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Received, TransferConfig, TransferError, TransferMetrics,
    frame::SliceName,
    inbound_link::InboundLink,
    lease::{Claim, Lease, Outcome},
    metrics::EndMetrics,
};
use crate::PagePin;

/// All transfers into one KV memory, and the links that they come over.
pub struct Inbound {
    memory: Arc<dyn KvMemory>,
    config: TransferConfig,
    metrics: EndMetrics,
    shutdown: CancellationToken,
    link_serial: AtomicU64,
    table: Mutex<Table>,
}

/// One leased transfer. Dropping it aborts the transfer and tells the sender: from then on no slice begins to be
/// written, and a page whose slice is being written stays pinned until the write has ended.
pub struct InboundTransfer {
    inbound: Arc<Inbound>,
    lease: Arc<Lease>,
    outcome: oneshot::Receiver<Outcome>,
}

/// Locked before any lease, never after one.
#[derive(Default)]
struct Table {
    leases: HashMap<TransferId, Arc<Lease>>,
    /// By worker id.
    links: HashMap<String, Arc<InboundLink>>,
}

// === impl Inbound ===

impl Inbound {
    #[must_use]
    pub fn new(memory: Arc<dyn KvMemory>, config: &TransferConfig, metrics: &TransferMetrics) -> Arc<Self> {
        Arc::new(Self {
            memory,
            config: config.clone(),
            metrics: metrics.inbound(),
            shutdown: CancellationToken::new(),
            link_serial: AtomicU64::new(0),
            table: Mutex::new(Table::default()),
        })
    }

    /// Lends `pages`, which hold the sequence's pages `first_page ..`, to a transfer from this worker. The sender is told
    /// at once, or as soon as it opens its link.
    ///
    /// Past `max_transfers`, or with an id that is live, the transfer has failed from the start.
    pub fn grant(
        self: &Arc<Self>,
        peer_worker_id: &str,
        transfer: TransferId,
        first_page: u32,
        pages: Vec<PagePin>,
    ) -> InboundTransfer {
        let layers = self.memory.layout().layers as u32;
        let (lease, outcome) = Lease::new(transfer, peer_worker_id, first_page, pages, layers);
        let lease = Arc::new(lease);
        match self.enter(&lease) {
            Err(refusal) => self.end(&lease, Err(refusal)),
            Ok(()) => {
                if let Some(received) = lease.if_empty() {
                    self.end(&lease, Ok(received));
                }
            }
        }
        InboundTransfer {
            inbound: Arc::clone(self),
            lease,
            outcome,
        }
    }

    /// Transfers that are open.
    #[must_use]
    pub fn live(&self) -> usize {
        self.table.lock().leases.len()
    }

    /// Closes all links, which aborts all transfers, and opens no more: for the worker's shutdown, which would otherwise
    /// wait for links to end.
    pub fn close(&self) {
        self.shutdown.cancel();
    }

    fn enter(&self, lease: &Arc<Lease>) -> Result<(), TransferError> {
        let mut table = self.table.lock();
        let Table { leases, links } = &mut *table;
        if leases.len() >= self.config.max_transfers {
            return Err(TransferError::TooMany {
                limit: self.config.max_transfers,
            });
        }
        match leases.entry(lease.id) {
            Entry::Occupied(_) => return Err(TransferError::IdInUse),
            Entry::Vacant(entry) => entry.insert(Arc::clone(lease)),
        };
        self.metrics.live.set(leases.len() as i64);
        // Under the lock, so that a link that closes now finds the lease bound to it.
        if let Some(link) = links.get(&lease.peer)
            && lease.bind(link)
        {
            link.grant(lease);
        }
        Ok(())
    }

    /// Ends a transfer, tells the sender, and resolves its future after its pins are gone. Nothing if it had ended.
    fn end(&self, lease: &Arc<Lease>, outcome: Outcome) {
        let Some(ended) = lease.end() else {
            return;
        };
        drop(ended.pins);
        {
            let mut table = self.table.lock();
            // A refused transfer may share its id with a live one.
            if table
                .leases
                .get(&lease.id)
                .is_some_and(|live| Arc::ptr_eq(live, lease))
            {
                table.leases.remove(&lease.id);
            }
            self.metrics.live.set(table.leases.len() as i64);
        }
        match &outcome {
            Ok(received) => {
                self.metrics.seconds.observe(received.seconds);
                if let Some(link) = ended.link {
                    link.ack(lease.id, received.bytes);
                }
            }
            Err(cause) => {
                tracing::debug!(transfer = %lease.id, peer = lease.peer, %cause, "inbound KV transfer ended early");
                self.metrics.aborted(cause);
                // The sender knows about its own aborts.
                if let Some(link) = ended.link
                    && !matches!(cause, TransferError::PeerAborted { .. })
                {
                    link.abort(lease.id, cause.to_string());
                }
            }
        }
        // Nobody listens if the transfer was dropped.
        let _ = ended.done.send(outcome);
    }
}

/// What links and data connections call.
impl Inbound {
    pub(super) fn config(&self) -> &TransferConfig {
        &self.config
    }

    pub(super) fn metrics(&self) -> &EndMetrics {
        &self.metrics
    }

    pub(super) fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    pub(super) fn slice_bytes(&self) -> usize {
        self.memory.layout().slice_bytes()
    }

    pub(super) fn next_link_serial(&self) -> u64 {
        self.link_serial.fetch_add(1, Ordering::Relaxed)
    }

    /// A handshake succeeded: transfers granted to this worker begin. An older link of the same worker is closed.
    pub(super) fn link_opened(&self, link: &Arc<InboundLink>) {
        let mut table = self.table.lock();
        let Table { leases, links } = &mut *table;
        if let Some(old) = links.insert(link.peer.clone(), Arc::clone(link)) {
            old.close("the worker opened a newer link");
        }
        self.metrics.links.inc();
        for lease in leases.values() {
            if lease.peer == link.peer && lease.bind(link) {
                link.grant(lease);
            }
        }
    }

    /// The counterpart of [`Inbound::link_opened`]: ends every transfer that was granted on this link.
    pub(super) fn link_closed(&self, link: &InboundLink) {
        let orphans: Vec<Arc<Lease>> = {
            let mut table = self.table.lock();
            let Table { leases, links } = &mut *table;
            if links.get(&link.peer).is_some_and(|it| it.serial == link.serial) {
                links.remove(&link.peer);
            }
            leases
                .values()
                .filter(|lease| lease.is_bound_to(link))
                .cloned()
                .collect()
        };
        self.metrics.links.dec();
        for lease in orphans {
            self.end(
                &lease,
                Err(TransferError::LinkLost {
                    peer: link.peer.clone(),
                    reason: link.reason(),
                }),
            );
        }
    }

    /// Writes a slice that came over `link` where its transfer says. What goes wrong ends that transfer only; slices of
    /// transfers that are not live, as just after an abort, are dropped.
    pub(super) fn deliver(&self, link: &InboundLink, name: SliceName, payload: &[u8]) {
        let Some(lease) = self.find(name.transfer) else {
            self.metrics.stray_slices.inc();
            return;
        };
        let pin = match lease.claim(link, name.page, name.layer) {
            Ok(Claim::Write(pin)) => pin,
            Ok(Claim::Stray) => {
                self.metrics.stray_slices.inc();
                return;
            }
            Err(cause) => return self.end(&lease, Err(cause)),
        };
        let written = self.memory.write_slice(pin.id(), name.layer, payload);
        drop(pin);
        if let Err(error) = written {
            return self.end(&lease, Err(TransferError::Memory(error.to_string())));
        }
        self.metrics.moved(payload.len());
        if let Some(received) = lease.written(payload.len()) {
            self.end(&lease, Ok(received));
        }
    }

    /// A slice came damaged. False if it cannot be told whose it was.
    pub(super) fn damaged(&self, link: &InboundLink, name: SliceName) -> bool {
        let lease = self.find(name.transfer).filter(|lease| lease.is_bound_to(link));
        let Some(lease) = lease else {
            return false;
        };
        let SliceName { page, layer, .. } = name;
        self.end(&lease, Err(TransferError::Checksum { page, layer }));
        true
    }

    pub(super) fn aborted_by_peer(&self, link: &InboundLink, transfer: TransferId, reason: String) {
        let lease = self.find(transfer).filter(|lease| lease.is_bound_to(link));
        if let Some(lease) = lease {
            self.end(
                &lease,
                Err(TransferError::PeerAborted {
                    peer: link.peer.clone(),
                    reason,
                }),
            );
        }
    }

    fn find(&self, transfer: TransferId) -> Option<Arc<Lease>> {
        self.table.lock().leases.get(&transfer).cloned()
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("live", &self.live())
            .finish_non_exhaustive()
    }
}

// === impl InboundTransfer ===

impl InboundTransfer {
    #[must_use]
    pub fn id(&self) -> TransferId {
        self.lease.id
    }

    /// Resolves when every slice has been written. Expiry of the lease is noticed while this is awaited.
    ///
    /// # Errors
    /// [`TransferError`] if the transfer ended without all its slices; its pages then hold anything.
    pub async fn complete(mut self) -> Result<Received, TransferError> {
        let timeout_ms = self.inbound.config.lease_timeout_ms;
        let timeout = self.inbound.config.lease_timeout();
        loop {
            let Some((_, expires)) = self.lease.expiry(timeout) else {
                let outcome = (&mut self.outcome).await;
                return outcome.unwrap_or(Err(TransferError::Dropped));
            };
            tokio::select! {
                biased;
                outcome = &mut self.outcome => return outcome.unwrap_or(Err(TransferError::Dropped)),
                () = sleep_until(expires) => {}
            }
            // There may have been progress since.
            if let Some((missing, expires)) = self.lease.expiry(timeout)
                && expires <= Instant::now()
            {
                self.inbound
                    .end(&self.lease, Err(TransferError::Expired { timeout_ms, missing }));
            }
        }
    }
}

impl Drop for InboundTransfer {
    fn drop(&mut self) {
        self.inbound.end(&self.lease, Err(TransferError::Dropped));
    }
}

impl fmt::Debug for InboundTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InboundTransfer").field(&self.lease.id).finish()
    }
}
