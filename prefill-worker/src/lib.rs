//! The Prefill service: runs prompts, pushes their KV to decode workers while later layers still compute, and samples
//! the first token of each choice.

mod metrics;
mod run;
mod service;

use std::sync::Arc;

use baton_engine::{
    BoxError,
    executor::{Executor, Wake},
};
use baton_kvcache::transfer::Outbound;
use baton_proto::v1::{WorkerRole, prefill_server::PrefillServer};
use baton_worker::{RunningWorker, StartError, Worker, WorkerSetup};
use tonic::service::Routes;

use crate::{metrics::PrefillMetrics, service::PrefillService};

/// Starts prefill workers; several can run in one process.
pub struct PrefillWorker;

impl PrefillWorker {
    /// Opens the device, binds the port, serves, and joins the routers.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start<F>(setup: WorkerSetup<F>) -> Result<RunningWorker, StartError>
    where
        F: FnOnce(Wake) -> Result<Box<dyn Executor>, BoxError> + Send + 'static,
    {
        let mut worker = Worker::prepare(WorkerRole::Prefill, setup).await?;
        let memory = worker.engine.kv_memory();
        let page_tokens = memory.layout().page_tokens;
        let outbound = Outbound::new(
            memory,
            worker.link_identity(),
            &worker.transfer,
            &worker.transfer_metrics,
        );
        let closing = Arc::clone(&outbound);
        worker.at_end(move || closing.close());
        let metrics = PrefillMetrics::new(&worker.registry)?;
        let service = PrefillService::new(worker.intake.clone(), outbound, page_tokens, metrics);
        let server = PrefillServer::new(service).max_decoding_message_size(worker.config.max_message_bytes);
        worker.serve(Routes::new(server)).await
    }
}
