//! One link from a sender, as the receiver holds it.

use std::sync::OnceLock;

use baton_proto::{
    TransferId,
    v1::{LinkAccept, LinkDown, TransferAbort, TransferAck, TransferGrant, link_down::Message},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::lease::Lease;

/// The way back to a sender. Closed once, by whoever first finds a reason; its task then ends all its transfers.
#[derive(Debug)]
pub(super) struct InboundLink {
    /// Tells links of the same worker apart.
    pub(super) serial: u64,
    pub(super) peer: String,
    pub(super) closed: CancellationToken,
    control: mpsc::Sender<Result<LinkDown, Status>>,
    reason: OnceLock<String>,
}

impl InboundLink {
    pub(super) fn new(
        serial: u64,
        peer: String,
        closed: CancellationToken,
        control: mpsc::Sender<Result<LinkDown, Status>>,
    ) -> Self {
        Self {
            serial,
            peer,
            closed,
            control,
            reason: OnceLock::new(),
        }
    }

    pub(super) fn accept(&self, accept: LinkAccept) {
        self.send(Message::Accept(accept));
    }

    pub(super) fn grant(&self, lease: &Lease) {
        self.send(Message::Grant(TransferGrant {
            transfer_id: lease.id.to_bytes(),
            first_page: lease.pages.start,
            page_count: lease.pages.len() as u32,
        }));
    }

    pub(super) fn abort(&self, transfer: TransferId, reason: String) {
        self.send(Message::Abort(TransferAbort {
            transfer_id: transfer.to_bytes(),
            reason,
        }));
    }

    pub(super) fn ack(&self, transfer: TransferId, bytes: u64) {
        self.send(Message::Ack(TransferAck {
            transfer_id: transfer.to_bytes(),
            bytes,
        }));
    }

    pub(super) fn close(&self, reason: impl Into<String>) {
        // The first reason stands.
        let _ = self.reason.set(reason.into());
        self.closed.cancel();
    }

    pub(super) fn reason(&self) -> String {
        self.reason
            .get()
            .cloned()
            .unwrap_or_else(|| "this worker is shutting down".to_owned())
    }

    /// Never waits: this is called under locks, and by drops.
    fn send(&self, message: Message) {
        let message = LinkDown {
            message: Some(message),
        };
        match self.control.try_send(Ok(message)) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.close("the sender does not read its control messages: see transfer.control_queue");
            }
            Err(mpsc::error::TrySendError::Closed(_)) => self.close("the sender went away"),
        }
    }
}
