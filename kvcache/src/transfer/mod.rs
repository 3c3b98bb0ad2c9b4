//! Hand-off of KV between workers.

mod config;
mod error;
mod inbound;
mod link_service;
mod metrics;
mod outbound;

use baton_proto::v1::KvFingerprint;

pub use config::{TransferConfig, TransportChoice};
pub use error::TransferError;
pub use inbound::{Inbound, InboundTransfer};
pub use link_service::KvLinkService;
pub use metrics::TransferMetrics;
pub use outbound::{Outbound, OutboundSink, OutboundTransfer};

/// Who this worker is, to the other end of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkIdentity {
    pub worker_id: String,
    /// Differs between two starts of the worker.
    pub incarnation: u64,
    pub fingerprint: KvFingerprint,
}

/// A transfer that arrived whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received {
    pub bytes: u64,
    /// From the lease to the last slice.
    pub seconds: f64,
}

/// A transfer that the receiver has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    pub bytes: u64,
    /// From the grant to the acknowledgement.
    pub seconds: f64,
}
