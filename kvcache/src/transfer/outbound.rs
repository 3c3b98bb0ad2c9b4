//! SIGNATURES ONLY; the body follows.
use super::*;
use crate::PagePin;
use baton_kernels::kv::KvMemory;
use baton_proto::{TransferId, v1::KvTarget};
use std::sync::Arc;

/// Sending side, on the prefill worker: a pool of links, one per target worker.
pub struct Outbound;
/// One transfer. Dropping it aborts the transfer and tells the receiver.
#[derive(Debug)]
pub struct OutboundTransfer;
/// Where the engine says which slices are ready.
#[derive(Debug)]
pub struct OutboundSink;
impl Outbound {
    #[must_use]
    pub fn new(
        _memory: Arc<dyn KvMemory>,
        _identity: LinkIdentity,
        _config: &TransferConfig,
        _metrics: &TransferMetrics,
    ) -> Arc<Self> {
        todo!()
    }
    /// `first_page..end_page` of the sequence will be sent, all layers.
    pub fn start(
        self: &Arc<Self>,
        _target: &KvTarget,
        _transfer: TransferId,
        _first_page: u32,
        _end_page: u32,
    ) -> OutboundTransfer {
        todo!()
    }
    #[must_use]
    pub fn live(&self) -> usize {
        todo!()
    }
}
impl OutboundTransfer {
    #[must_use]
    pub fn sink(&self) -> Arc<OutboundSink> {
        todo!()
    }
    pub async fn complete(self) -> Result<Sent, TransferError> {
        todo!()
    }
}
impl OutboundSink {
    pub fn ready(&self, _layer: u32, _pages: &[(u32, PagePin)]) {
        todo!()
    }
}
