//! Decides what each step runs. Pure: no clock, no threads, no I/O.

mod limits;

pub use limits::{CheckedRequest, RequestLimits};

/// Names one request of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub u64);
