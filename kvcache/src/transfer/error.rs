//! Why a transfer ended without its pages.

use std::net::SocketAddr;

/// Every way in which a transfer can fail. All of them leave the receiver's pages without a writer; another transfer,
/// with another id, may be tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The peer refused the link: other protocol version, other fingerprint, no transport in common, too many links.
    #[error("{peer} refused the KV link: {reason}")]
    Refused { peer: String, reason: String },
    /// The link could not be opened, or ended.
    #[error("the KV link to {peer} is lost: {reason}")]
    LinkLost { peer: String, reason: String },
    /// The other end gave the transfer up.
    #[error("{peer} aborted the transfer: {reason}")]
    PeerAborted { peer: String, reason: String },
    /// The receiver got a slice whose checksum is wrong.
    #[error("the checksum of page {page} layer {layer} is wrong: it was damaged on the way")]
    Checksum { page: u32, layer: u32 },
    /// The receiver got a slice twice.
    #[error("page {page} layer {layer} arrived twice")]
    Duplicate { page: u32, layer: u32 },
    /// The receiver got a slice that was not leased.
    #[error(
        "page {page} layer {layer} is outside of this transfer's pages {first_page}..{end_page} and {layers} layers"
    )]
    OutOfRange {
        page: u32,
        layer: u32,
        first_page: u32,
        end_page: u32,
        layers: u32,
    },
    /// The two ends disagree on what is to be sent.
    #[error(
        "the receiver leased pages {leased_first}..{leased_end}, and {first_page}..{end_page} are to be sent"
    )]
    RangeMismatch {
        leased_first: u32,
        leased_end: u32,
        first_page: u32,
        end_page: u32,
    },
    /// Nothing arrived, or was acknowledged, for the lease timeout.
    #[error("no progress for {timeout_ms} ms with {missing} slices missing: see transfer.lease_timeout_ms")]
    Expired { timeout_ms: u64, missing: usize },
    /// Local limit.
    #[error("{limit} transfers are live, which is the limit: see transfer.max_transfers")]
    TooMany { limit: usize },
    /// The id names a live transfer already.
    #[error("a transfer with this id is live already")]
    IdInUse,
    /// This side let go of it.
    #[error("the transfer was dropped here")]
    Dropped,
    /// The KV memory refused a slice.
    #[error("KV memory: {0}")]
    Memory(String),
    /// The data listener could not be opened.
    #[error("cannot listen for KV on {addr}: {reason}; see transfer.data_listen")]
    Listen { addr: SocketAddr, reason: String },
    /// The configuration cannot work.
    #[error(transparent)]
    Config(#[from] baton_proto::InvalidConfig),
}

impl TransferError {
    /// The label of metrics: one word for each kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::LinkLost { .. } => "link_lost",
            Self::PeerAborted { .. } => "peer_aborted",
            Self::Checksum { .. } => "checksum",
            Self::Duplicate { .. } => "duplicate",
            Self::OutOfRange { .. } => "out_of_range",
            Self::RangeMismatch { .. } => "range_mismatch",
            Self::Expired { .. } => "expired",
            Self::TooMany { .. } => "too_many",
            Self::IdInUse => "id_in_use",
            Self::Dropped => "dropped",
            Self::Memory(_) => "memory",
            Self::Listen { .. } => "listen",
            Self::Config(_) => "config",
        }
    }
}
