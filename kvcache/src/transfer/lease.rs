//! One transfer as its receiver sees it: which pages it may write, and what has arrived.

use std::{ops::Range, sync::Arc, time::Duration};

use baton_proto::TransferId;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Received, TransferError,
    inbound_link::InboundLink,
    slice_set::{Seen, SliceSet},
};
use crate::PagePin;

/// Pages lent to one transfer until it ends. It ends once: by the last slice, or by the first error.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: TransferId,
    /// The worker that may send.
    pub(super) peer: String,
    pub(super) pages: Range<u32>,
    layers: u32,
    open: Mutex<Option<OpenLease>>,
}

/// What exists until the end.
#[derive(Debug)]
struct OpenLease {
    pins: Vec<PagePin>,
    claimed: SliceSet,
    /// Slices not yet written.
    missing: usize,
    bytes: u64,
    granted: Instant,
    progress: Instant,
    link: Option<Arc<InboundLink>>,
    done: oneshot::Sender<Outcome>,
}

pub(super) type Outcome = Result<Received, TransferError>;

/// The parts of a lease that has just ended; only one caller gets them.
#[derive(Debug)]
pub(super) struct EndedLease {
    pub(super) pins: Vec<PagePin>,
    pub(super) link: Option<Arc<InboundLink>>,
    pub(super) done: oneshot::Sender<Outcome>,
}

/// Where to write a slice. The pin lives until the write has ended, even if the transfer is aborted meanwhile.
#[derive(Debug)]
pub(super) enum Claim {
    Write(PagePin),
    /// The transfer has ended, or this link is not the one it was granted on.
    Stray,
}

impl Lease {
    pub(super) fn new(
        id: TransferId,
        peer: &str,
        first_page: u32,
        pins: Vec<PagePin>,
        layers: u32,
    ) -> (Self, oneshot::Receiver<Outcome>) {
        let (done, outcome) = oneshot::channel();
        let now = Instant::now();
        let pages = first_page..first_page.saturating_add(pins.len() as u32);
        let claimed = SliceSet::new(pages.clone(), layers);
        let lease = Self {
            id,
            peer: peer.to_owned(),
            pages,
            layers,
            open: Mutex::new(Some(OpenLease {
                pins,
                missing: claimed.capacity(),
                claimed,
                bytes: 0,
                granted: now,
                progress: now,
                link: None,
                done,
            })),
        };
        (lease, outcome)
    }

    /// Slices of this transfer come over `link` and no other. False if it has a link already, or has ended.
    pub(super) fn bind(&self, link: &Arc<InboundLink>) -> bool {
        match &mut *self.open.lock() {
            Some(open) if open.link.is_none() => {
                open.link = Some(Arc::clone(link));
                true
            }
            _ => false,
        }
    }

    pub(super) fn is_bound_to(&self, link: &InboundLink) -> bool {
        let open = self.open.lock();
        open.as_ref()
            .and_then(|open| open.link.as_ref())
            .is_some_and(|bound| bound.serial == link.serial)
    }

    /// Claims a slice for writing.
    ///
    /// # Errors
    /// If it came before, or is not part of this transfer.
    pub(super) fn claim(&self, link: &InboundLink, page: u32, layer: u32) -> Result<Claim, TransferError> {
        let mut open = self.open.lock();
        let Some(open) = open.as_mut() else {
            return Ok(Claim::Stray);
        };
        if open.link.as_ref().is_none_or(|bound| bound.serial != link.serial) {
            return Ok(Claim::Stray);
        }
        match open.claimed.insert(page, layer) {
            Seen::New => {
                let pin = &open.pins[(page - self.pages.start) as usize];
                Ok(Claim::Write(pin.clone()))
            }
            Seen::Before => Err(TransferError::Duplicate { page, layer }),
            Seen::OutOfRange => Err(TransferError::OutOfRange {
                page,
                layer,
                first_page: self.pages.start,
                end_page: self.pages.end,
                layers: self.layers,
            }),
        }
    }

    /// A claimed slice is written. The summary, if it was the last one.
    pub(super) fn written(&self, bytes: usize) -> Option<Received> {
        let mut open = self.open.lock();
        let open = open.as_mut()?;
        open.missing -= 1;
        open.bytes += bytes as u64;
        open.progress = Instant::now();
        (open.missing == 0).then(|| open.summary())
    }

    /// The summary, if there is nothing to wait for from the start.
    pub(super) fn if_empty(&self) -> Option<Received> {
        let open = self.open.lock();
        open.as_ref()
            .filter(|open| open.missing == 0)
            .map(OpenLease::summary)
    }

    /// Slices missing and when the lease expires without another; none once it has ended.
    pub(super) fn expiry(&self, timeout: Duration) -> Option<(usize, Instant)> {
        let open = self.open.lock();
        open.as_ref().map(|open| (open.missing, open.progress + timeout))
    }

    /// Ends the lease: from now on nothing claims a slice. `None` if it had ended before.
    pub(super) fn end(&self) -> Option<EndedLease> {
        self.open.lock().take().map(|open| EndedLease {
            pins: open.pins,
            link: open.link,
            done: open.done,
        })
    }
}

impl OpenLease {
    fn summary(&self) -> Received {
        Received {
            bytes: self.bytes,
            seconds: self.granted.elapsed().as_secs_f64(),
        }
    }
}
