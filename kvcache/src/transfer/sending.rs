//! One transfer as its sender sees it: what is ready, what is sent.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use baton_proto::TransferId;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Sent, TransferError,
    frame::SliceName,
    metrics::EndMetrics,
    slice_set::{Seen, SliceSet},
};
use crate::PagePin;

/// Slices of one sequence on their way to one receiver. It ends once: by the acknowledgement, or by the first error.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) id: TransferId,
    pub(super) pages: Range<u32>,
    open: Mutex<Option<OpenSending>>,
}

/// What exists until the end.
#[derive(Debug)]
struct OpenSending {
    /// Slices that the engine has named.
    named: SliceSet,
    ready: VecDeque<(u32, u32)>,
    /// By page, from the first slice that is ready until the end.
    pins: Vec<Option<PagePin>>,
    unsent: usize,
    granted: Option<Instant>,
    /// When the last slice was taken for sending.
    progress: Instant,
    /// Whether the link's ring has it, or is about to.
    queued: bool,
    done: oneshot::Sender<Outcome>,
    live: LiveTransfer,
}

pub(super) type Outcome = Result<Sent, TransferError>;

/// Transfers that are open, by id.
#[derive(Debug)]
pub(super) struct LiveTransfers {
    ids: Mutex<HashSet<TransferId>>,
    limit: usize,
    metrics: EndMetrics,
}

/// One of them, until dropped.
#[derive(Debug)]
pub(super) struct LiveTransfer {
    id: TransferId,
    all: Arc<LiveTransfers>,
}

/// A slice to send, with the pin that keeps its page while it is read.
#[derive(Debug)]
pub(super) struct ReadySlice {
    pub(super) name: SliceName,
    pub(super) pin: PagePin,
}

/// A sending that has just ended; only one caller gets it. Its pins are gone already.
#[derive(Debug)]
pub(super) struct EndedSending {
    done: oneshot::Sender<Outcome>,
}

impl Sending {
    pub(super) fn new(
        pages: Range<u32>,
        layers: u32,
        live: LiveTransfer,
    ) -> (Self, oneshot::Receiver<Outcome>) {
        let (done, outcome) = oneshot::channel();
        let named = SliceSet::new(pages.clone(), layers);
        let sending = Self {
            id: live.id,
            open: Mutex::new(Some(OpenSending {
                unsent: named.capacity(),
                named,
                ready: VecDeque::new(),
                pins: vec![None; pages.len()],
                granted: None,
                progress: Instant::now(),
                queued: false,
                done,
                live,
            })),
            pages,
        };
        (sending, outcome)
    }

    /// A sending that never began.
    pub(super) fn refused(
        id: TransferId,
        pages: Range<u32>,
        outcome: Outcome,
    ) -> (Self, oneshot::Receiver<Outcome>) {
        let (done, resolved) = oneshot::channel();
        // The receiver is right here.
        let _ = done.send(outcome);
        let sending = Self {
            id,
            pages,
            open: Mutex::new(None),
        };
        (sending, resolved)
    }

    /// Takes in slices that the engine has finished. Pages outside of this transfer are not its business. True if the
    /// caller must queue the transfer at its link.
    pub(super) fn ready(&self, layer: u32, pages: &[(u32, PagePin)]) -> bool {
        let mut open = self.open.lock();
        let Some(open) = open.as_mut() else {
            return false;
        };
        for (page, pin) in pages {
            if open.named.insert(*page, layer) == Seen::New {
                open.ready.push_back((*page, layer));
                open.pins[(*page - self.pages.start) as usize].get_or_insert_with(|| pin.clone());
            }
        }
        open.enqueue()
    }

    /// The receiver leased these pages. True if the caller must queue the transfer at its link.
    ///
    /// # Errors
    /// If they are not the pages to be sent.
    pub(super) fn grant(&self, leased: &Range<u32>) -> Result<bool, TransferError> {
        if *leased != self.pages {
            return Err(TransferError::RangeMismatch {
                leased_first: leased.start,
                leased_end: leased.end,
                first_page: self.pages.start,
                end_page: self.pages.end,
            });
        }
        let mut open = self.open.lock();
        let Some(open) = open.as_mut() else {
            return Ok(false);
        };
        open.granted.get_or_insert_with(Instant::now);
        Ok(open.enqueue())
    }

    /// The next slice to send, and whether the transfer stays in the ring. Nothing if it has ended.
    pub(super) fn take_ready(&self) -> Option<(ReadySlice, bool)> {
        let mut open = self.open.lock();
        let open = open.as_mut()?;
        let Some((page, layer)) = open.ready.pop_front() else {
            open.queued = false;
            return None;
        };
        open.queued = !open.ready.is_empty();
        open.unsent -= 1;
        open.progress = Instant::now();
        let pin = open.pins[(page - self.pages.start) as usize].clone()?;
        let name = SliceName {
            transfer: self.id,
            page,
            layer,
        };
        Some((ReadySlice { name, pin }, open.queued))
    }

    /// When the acknowledgement is overdue; none while there is still something to send, and after the end.
    pub(super) fn ack_expiry(&self, timeout: Duration) -> Option<Instant> {
        let open = self.open.lock();
        open.as_ref()
            .filter(|open| open.unsent == 0)
            .map(|open| open.progress + timeout)
    }

    /// Time since the grant.
    pub(super) fn seconds(&self) -> f64 {
        let open = self.open.lock();
        let granted = open.as_ref().and_then(|open| open.granted);
        granted.map_or(0.0, |granted| granted.elapsed().as_secs_f64())
    }

    /// Ends the transfer, drops its pins and gives up its place. `None` if it had ended before.
    pub(super) fn end(&self, outcome: &Outcome) -> Option<EndedSending> {
        let open = self.open.lock().take()?;
        let metrics = &open.live.all.metrics;
        match outcome {
            Ok(sent) => metrics.seconds.observe(sent.seconds),
            Err(cause) => metrics.aborted(cause),
        }
        Some(EndedSending { done: open.done })
    }
}

impl OpenSending {
    fn enqueue(&mut self) -> bool {
        let enqueue = !self.queued && self.granted.is_some() && !self.ready.is_empty();
        self.queued |= enqueue;
        enqueue
    }
}

impl EndedSending {
    pub(super) fn resolve(self, outcome: Outcome) {
        // Nobody listens if the transfer was dropped.
        let _ = self.done.send(outcome);
    }
}

impl LiveTransfers {
    pub(super) fn new(limit: usize, metrics: EndMetrics) -> Arc<Self> {
        Arc::new(Self {
            ids: Mutex::new(HashSet::new()),
            limit,
            metrics,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.ids.lock().len()
    }

    /// # Errors
    /// If there is no room, or the id is taken.
    pub(super) fn enter(self: &Arc<Self>, id: TransferId) -> Result<LiveTransfer, TransferError> {
        let mut ids = self.ids.lock();
        let refusal = if ids.len() >= self.limit {
            TransferError::TooMany { limit: self.limit }
        } else if ids.insert(id) {
            self.metrics.live.set(ids.len() as i64);
            return Ok(LiveTransfer {
                id,
                all: Arc::clone(self),
            });
        } else {
            TransferError::IdInUse
        };
        self.metrics.aborted(&refusal);
        Err(refusal)
    }
}

impl Drop for LiveTransfer {
    fn drop(&mut self) {
        let mut ids = self.all.ids.lock();
        ids.remove(&self.id);
        self.all.metrics.live.set(ids.len() as i64);
    }
}
