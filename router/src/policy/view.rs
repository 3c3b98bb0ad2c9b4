//! What the policy sees of a worker.

use baton_proto::v1::{Capacity, KvFingerprint, WorkerLoad, WorkerRole};

/// Work that this router has sent since the worker's last load report, and that the report therefore lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    pub requests: u32,
    pub prompt_tokens: u64,
}

/// One worker at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    pub worker_id: String,
    pub incarnation: u64,
    pub role: WorkerRole,
    /// `http://host:port`
    pub addr: String,
    pub model: String,
    pub fingerprint: KvFingerprint,
    pub capacity: Capacity,
    pub load: WorkerLoad,
    pub assigned: Assigned,
    /// Draining: nothing new is sent.
    pub leaving: bool,
}
