//! SIGNATURES ONLY; the body follows.
use super::*;
use std::sync::Arc;
/// The gRPC service `KvLink`, and the TCP listener for KV beside it.
pub struct KvLinkService;
impl KvLinkService {
    /// Binds the data listener; call it inside a tokio runtime.
    pub fn new(
        _inbound: Arc<Inbound>,
        _identity: LinkIdentity,
        _config: &TransferConfig,
    ) -> Result<Self, TransferError> {
        todo!()
    }
}
#[tonic::async_trait]
impl baton_proto::v1::kv_link_server::KvLink for KvLinkService {
    type OpenStream = tokio_stream::wrappers::ReceiverStream<Result<baton_proto::v1::LinkDown, tonic::Status>>;
    async fn open(
        &self,
        _request: tonic::Request<tonic::Streaming<baton_proto::v1::LinkUp>>,
    ) -> Result<tonic::Response<Self::OpenStream>, tonic::Status> {
        todo!()
    }
}
