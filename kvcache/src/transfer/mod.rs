//! Hand-off of KV between workers, page by page and layer by layer.
//!
//! A prefill worker has one [`Outbound`], a decode worker one [`Inbound`] and a [`KvLinkService`]. Between two workers
//! there is one *link*: a gRPC stream for control, and beside it a transport for the slices. A *transfer* moves the slices
//! of one sequence: each goes as soon as the engine has named it ready and the receiver has leased its page, and the
//! receiver acknowledges the last. Whatever goes wrong ends the transfer on both sides with a [`TransferError`]; pins end
//! with it.
//!
//! | module | what it holds |
//! |---|---|
//! | `inbound`, `lease` | the receiving side: all transfers, and one |
//! | `link_service`, `inbound_link`, `data_listener` | links at the receiver: gRPC, the way back, TCP |
//! | `outbound`, `sending` | the sending side: all transfers, and one |
//! | `link_client`, `outbound_link` | links at the sender: the task, and what transfers share of it |
//! | `frame`, `local` | the two transports |

mod config;
mod data_listener;
mod error;
mod frame;
mod inbound;
mod inbound_link;
mod lease;
mod link_client;
mod link_service;
mod local;
mod metrics;
mod outbound;
mod outbound_link;
mod sending;
mod slice_set;

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
