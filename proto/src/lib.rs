//! The wire of Baton, and the identities that both ends of it must compute alike.
//!
//! [`v1`] is generated from `baton/v1/*.proto`. The other modules are small values that cross the wire and whose
//! meaning must not depend on who computes them.

pub mod block_hash;
pub mod fingerprint;
pub mod invalid_config;
pub mod trace_context;
pub mod transfer_id;

pub use block_hash::{BlockHash, BlockHasher, CacheScope};
pub use fingerprint::FingerprintMismatch;
pub use invalid_config::InvalidConfig;
pub use trace_context::TraceContext;
pub use transfer_id::TransferId;

/// The generated messages, clients and servers of package `baton.v1`.
#[allow(unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("baton.v1");
}

/// The compiled descriptors, for gRPC server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/baton.bin"));

/// Version of the contracts in [`v1`]. Neighbouring versions work together.
pub const PROTOCOL_VERSION: u32 = 1;

/// The oldest version that this one still talks to.
pub const OLDEST_PROTOCOL_VERSION: u32 = 1;
