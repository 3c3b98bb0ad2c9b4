//! SIGNATURES ONLY; the body follows.
use super::*;
use crate::PagePin;
use baton_kernels::kv::KvMemory;
use baton_proto::TransferId;
use std::sync::Arc;

/// Receiving side, on the decode worker.
pub struct Inbound;
/// One leased transfer. Dropping it aborts the transfer and tells the sender.
#[derive(Debug)]
pub struct InboundTransfer;
impl Inbound {
    #[must_use]
    pub fn new(_memory: Arc<dyn KvMemory>, _config: &TransferConfig, _metrics: &TransferMetrics) -> Arc<Self> {
        todo!()
    }
    /// Pages are leased: slices of this transfer may arrive.
    pub fn grant(
        self: &Arc<Self>,
        _peer_worker_id: &str,
        _transfer: TransferId,
        _first_page: u32,
        _pages: Vec<PagePin>,
    ) -> InboundTransfer {
        todo!()
    }
    /// Transfers open.
    #[must_use]
    pub fn live(&self) -> usize {
        todo!()
    }
}
impl InboundTransfer {
    #[must_use]
    pub fn id(&self) -> TransferId {
        todo!()
    }
    pub async fn complete(self) -> Result<Received, TransferError> {
        todo!()
    }
}
