//! The Decode service: owns a request from acceptance to its last token, has its prompt run by a prefill worker or
//! runs it itself, decodes in the engine's running batch, and streams token ids.
//!
//! [`relay`] is the life of one request, [`handoff`] one attempt to get its KV from one prefill worker.

mod config;
mod forwarded;
mod handoff;
mod metrics;
mod relay;
mod service;

use std::sync::Arc;

use baton_engine::{
    BoxError,
    executor::{Executor, Wake},
};
use baton_kvcache::transfer::{Inbound, KvLinkService};
use baton_proto::v1::{KvTarget, WorkerRole, decode_server::DecodeServer, kv_link_server::KvLinkServer};
use baton_worker::{ChannelPool, RunningWorker, StartError, Worker, WorkerSetup, channels::ConnectionPolicy};
use tonic::service::Routes;

pub use config::DecodeConfig;

use crate::{handoff::Peers, metrics::DecodeMetrics, service::DecodeService};

/// Starts decode workers; several can run in one process.
pub struct DecodeWorker;

impl DecodeWorker {
    /// Opens the device, binds the port, serves, and joins the routers.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start<F>(setup: WorkerSetup<F>, config: DecodeConfig) -> Result<RunningWorker, StartError>
    where
        F: FnOnce(Wake) -> Result<Box<dyn Executor>, BoxError> + Send + 'static,
    {
        config.validate()?;
        let mut worker = Worker::prepare(WorkerRole::Decode, setup).await?;
        let inbound = Inbound::new(
            worker.engine.kv_memory(),
            &worker.transfer,
            &worker.transfer_metrics,
        );
        let links = KvLinkService::new(Arc::clone(&inbound), worker.link_identity())?;
        let closing = Arc::clone(&inbound);
        worker.at_end(move || closing.close());
        let policy = ConnectionPolicy {
            connect_timeout: config.connect_timeout(),
            ..ConnectionPolicy::default()
        };
        let peers = Peers {
            inbound,
            channels: ChannelPool::new(policy, config.max_peers),
            target: KvTarget {
                worker_id: worker.identity.worker_id.clone(),
                kv_link_addr: worker.identity.url.clone(),
            },
            vocab: worker.engine.limits().vocab,
            config,
            metrics: DecodeMetrics::new(&worker.registry)?,
            awaiting_kv: worker.awaiting_kv.clone(),
        };
        let page_tokens = worker.engine.kv_memory().layout().page_tokens as u32;
        let service = DecodeService::new(worker.intake.clone(), Arc::new(peers), page_tokens);
        let max_message = worker.config.max_message_bytes;
        let services = Routes::new(DecodeServer::new(service).max_decoding_message_size(max_message))
            .add_service(KvLinkServer::new(links).max_decoding_message_size(max_message));
        worker.serve(services).await
    }
}
