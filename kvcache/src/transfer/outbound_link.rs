//! One link to a receiver, as the sender's transfers share it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
};

use baton_proto::{
    TransferId,
    v1::{KvTarget, LinkUp, TransferAbort, link_up::Message},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    TransferError,
    sending::{Outcome, ReadySlice, Sending},
};

/// Transfers to one worker and the ring in which they take turns. Its task connects, sends, and at the end of the link
/// ends all of them.
#[derive(Debug)]
pub(super) struct OutboundLink {
    pub(super) target: KvTarget,
    pub(super) closed: CancellationToken,
    control: mpsc::Sender<LinkUp>,
    reason: OnceLock<TransferError>,
    state: Mutex<LinkState>,
    /// Told when the ring is not empty any more.
    work: Notify,
}

#[derive(Debug, Default)]
struct LinkState {
    ended: bool,
    sendings: HashMap<TransferId, Arc<Sending>>,
    /// Those with something to send, one slice for each turn.
    ring: VecDeque<Arc<Sending>>,
}

impl OutboundLink {
    pub(super) fn new(target: KvTarget, closed: CancellationToken, control: mpsc::Sender<LinkUp>) -> Self {
        Self {
            target,
            closed,
            control,
            reason: OnceLock::new(),
            state: Mutex::default(),
            work: Notify::new(),
        }
    }

    /// Adds a transfer. False if the link has ended: another is needed.
    pub(super) fn enter(&self, sending: &Arc<Sending>) -> bool {
        let mut state = self.state.lock();
        if state.ended || self.closed.is_cancelled() {
            return false;
        }
        state.sendings.insert(sending.id, Arc::clone(sending));
        true
    }

    pub(super) fn find(&self, transfer: TransferId) -> Option<Arc<Sending>> {
        self.state.lock().sendings.get(&transfer).cloned()
    }

    /// Gives a transfer its turn, after those that wait already.
    pub(super) fn queue(&self, sending: Arc<Sending>) {
        self.state.lock().ring.push_back(sending);
        self.work.notify_one();
    }

    /// The next slice of whoever's turn it is; waits for one.
    pub(super) async fn next(&self) -> ReadySlice {
        loop {
            if let Some(slice) = self.try_next() {
                return slice;
            }
            self.wait_for_work().await;
        }
    }

    /// Returns at once if a transfer was queued since the last call.
    pub(super) async fn wait_for_work(&self) {
        self.work.notified().await;
    }

    pub(super) fn try_next(&self) -> Option<ReadySlice> {
        loop {
            let sending = self.state.lock().ring.pop_front()?;
            if let Some((slice, more)) = sending.take_ready() {
                if more {
                    self.state.lock().ring.push_back(sending);
                }
                return Some(slice);
            }
        }
    }

    /// Ends a transfer and tells the receiver unless it knows. Nothing if it had ended.
    pub(super) fn end(&self, sending: &Sending, outcome: Outcome) {
        let Some(ended) = sending.end(&outcome) else {
            return;
        };
        self.state.lock().sendings.remove(&sending.id);
        if let Err(cause) = &outcome {
            tracing::debug!(
                transfer = %sending.id, peer = self.target.worker_id, %cause, "outbound KV transfer ended early"
            );
            let peer_knows = matches!(
                cause,
                TransferError::PeerAborted { .. }
                    | TransferError::LinkLost { .. }
                    | TransferError::Refused { .. }
            );
            if !peer_knows {
                self.abort(sending.id, cause.to_string());
            }
        }
        ended.resolve(outcome);
    }

    /// Tells the receiver that a transfer will not be sent.
    pub(super) fn abort(&self, transfer: TransferId, reason: String) {
        let message = LinkUp {
            message: Some(Message::Abort(TransferAbort {
                transfer_id: transfer.to_bytes(),
                reason,
            })),
        };
        // Never waits: drops come here.
        if self.control.try_send(message).is_err() {
            self.close(
                self.lost("the receiver does not read its control messages: see transfer.control_queue"),
            );
        }
    }

    pub(super) fn lost(&self, reason: impl Into<String>) -> TransferError {
        TransferError::LinkLost {
            peer: self.target.worker_id.clone(),
            reason: reason.into(),
        }
    }

    /// Ends the link; the first reason stands.
    pub(super) fn close(&self, reason: TransferError) {
        let _ = self.reason.set(reason);
        self.closed.cancel();
    }

    /// The last act of the link's task: no transfer enters any more, and those that did end.
    pub(super) fn end_all(&self) -> TransferError {
        let sendings = {
            let mut state = self.state.lock();
            state.ended = true;
            state.ring.clear();
            std::mem::take(&mut state.sendings)
        };
        let reason = self
            .reason
            .get()
            .cloned()
            .unwrap_or_else(|| self.lost("this worker is shutting down"));
        for sending in sendings.into_values() {
            if let Some(ended) = sending.end(&Err(reason.clone())) {
                ended.resolve(Err(reason.clone()));
            }
        }
        reason
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::{
        PageAllocator,
        transfer::{TransferMetrics, sending::LiveTransfers},
    };

    #[test]
    fn transfers_take_turns_slice_by_slice() {
        let metrics = TransferMetrics::new(&Registry::new()).expect("a new registry");
        let live = LiveTransfers::new(8, metrics.outbound());
        let (control, _up) = mpsc::channel(16);
        let link = OutboundLink::new(KvTarget::default(), CancellationToken::new(), control);
        let mut pages = PageAllocator::new(1);
        let page = pages.alloc().expect("free");
        let mut outcomes = Vec::new();
        let sendings: Vec<_> = [(1, 4), (2, 2), (3, 1)]
            .map(|(id, pages)| {
                let live = live.enter(TransferId(id)).expect("room");
                let (sending, outcome) = Sending::new(0..pages, 1, live);
                outcomes.push(outcome);
                Arc::new(sending)
            })
            .into();
        for sending in &sendings {
            assert!(link.enter(sending));
            let named: Vec<_> = sending.pages.clone().map(|index| (index, page.pin())).collect();
            assert!(!sending.ready(0, &named), "not granted yet");
            assert!(sending.grant(&sending.pages).expect("the same pages"));
            link.queue(Arc::clone(sending));
        }
        let order: Vec<u128> = std::iter::from_fn(|| link.try_next())
            .map(|slice| slice.name.transfer.0)
            .collect();
        assert_eq!(order, [1, 2, 3, 1, 2, 1, 1]);
        link.closed.cancel();
        link.end_all();
        assert_eq!(live.len(), 0);
        drop(page);
        pages.reclaim();
        assert_eq!(pages.counts().free, 1, "no pin is left");
    }
}
