//! Starts and stops a router.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::serve::Listener as _;
use baton_proto::{
    FILE_DESCRIPTOR_SET,
    v1::{inference_server::InferenceServer, registry_server::RegistryServer},
};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::{
    RouterConfig, RouterError,
    connections::BoundedListener,
    grpc::{InferenceService, RegistryService},
    http::{self, App},
    metrics::RouterMetrics,
    pipeline::{Pipeline, random},
    registry::{Registry, RegistrySettings},
    text::ModelText,
};

/// Time for connections to close after their last answer.
const CLOSING: Duration = Duration::from_secs(1);
/// A gRPC peer that answers no ping for that long is gone.
const PING: Duration = Duration::from_secs(5);

/// The router component.
#[derive(Debug)]
pub struct Router;

/// A router that serves. Dropping it leaves it running; use [`RunningRouter::shutdown`].
#[derive(Debug)]
pub struct RunningRouter {
    /// Where HTTP is served.
    pub http_addr: SocketAddr,
    /// Where gRPC is served.
    pub grpc_addr: SocketAddr,
    pipeline: Arc<Pipeline>,
    /// Both servers stop accepting.
    stop: CancellationToken,
    /// Workers' stays end.
    leave: CancellationToken,
    servers: [JoinHandle<Result<(), String>>; 2],
}

impl Router {
    /// Loads the model's text files and serves on both ports. Its series are added to `prometheus`, which `/metrics` shows.
    ///
    /// # Errors
    /// [`RouterError`] naming the configuration value, file or address that is at fault.
    pub async fn start(
        config: RouterConfig,
        prometheus: prometheus::Registry,
    ) -> Result<RunningRouter, RouterError> {
        config.validate()?;
        let directory = config.model.clone();
        let text = spawn_blocking(move || ModelText::load(&directory))
            .await
            .map_err(|error| RouterError::Load(error.to_string()))??;
        let metrics = RouterMetrics::new(&prometheus)?;
        let http = bind(config.listen, config.max_connections).await?;
        let grpc = bind(config.grpc_listen, config.max_connections).await?;
        let (http_addr, grpc_addr) = (addr(&http, config.listen)?, addr(&grpc, config.grpc_listen)?);

        let settings = RegistrySettings {
            max_workers: config.max_workers,
            connect_timeout: config.connect_timeout(),
        };
        let registry = Registry::new(settings, metrics.clone());
        let (stop, leave) = (CancellationToken::new(), CancellationToken::new());
        let workers = RegistryService::new(
            Arc::clone(&registry),
            format!("router-{:016x}", random()),
            config.worker_silence(),
            leave.clone(),
        );
        let pipeline = Pipeline::new(config, Arc::new(text), registry, metrics);
        let app = App {
            pipeline: Arc::clone(&pipeline),
            prometheus,
        };
        let http =
            axum::serve(http, http::routes(app)).with_graceful_shutdown(stop.clone().cancelled_owned());
        let grpc = serve_grpc(grpc, Arc::clone(&pipeline), workers, stop.clone()).await?;
        tracing::info!(%http_addr, %grpc_addr, model = pipeline.model, "router listens");
        Ok(RunningRouter {
            http_addr,
            grpc_addr,
            pipeline,
            stop,
            leave,
            servers: [
                tokio::spawn(async move { http.await.map_err(|error| error.to_string()) }),
                tokio::spawn(grpc),
            ],
        })
    }
}

impl RunningRouter {
    /// Whether a request would be served now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.pipeline.is_ready()
    }

    /// Takes nothing new, lets what runs finish within `grace`, ends the rest with an error, and closes.
    pub async fn shutdown(self, grace: Duration) {
        self.pipeline.drain();
        self.stop.cancel();
        if timeout(grace, self.pipeline.drained()).await.is_err() {
            tracing::warn!(?grace, "requests still run after the grace and are ended");
        }
        self.pipeline.abort();
        self.leave.cancel();
        for mut server in self.servers {
            match timeout(CLOSING, &mut server).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => tracing::error!("server: {error}"),
                Ok(Err(error)) => tracing::error!("server: {error}"),
                Err(_) => server.abort(),
            }
        }
    }
}

async fn bind(addr: SocketAddr, connections: usize) -> Result<BoundedListener, RouterError> {
    BoundedListener::bind(addr, connections)
        .await
        .map_err(|source| RouterError::Listen { addr, source })
}

fn addr(listener: &BoundedListener, asked: SocketAddr) -> Result<SocketAddr, RouterError> {
    listener
        .local_addr()
        .map_err(|source| RouterError::Listen { addr: asked, source })
}

async fn serve_grpc(
    listener: BoundedListener,
    pipeline: Arc<Pipeline>,
    workers: RegistryService,
    stop: CancellationToken,
) -> Result<impl Future<Output = Result<(), String>> + Send, RouterError> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| RouterError::Reflection(error.to_string()))?;
    let (reporter, health) = tonic_health::server::health_reporter();
    let largest = pipeline.config.max_body_bytes.saturating_mul(4);
    let inference = InferenceServer::new(InferenceService::new(pipeline)).max_decoding_message_size(largest);
    let workers = RegistryServer::new(workers);
    reporter.set_serving::<InferenceServer<InferenceService>>().await;
    reporter.set_serving::<RegistryServer<RegistryService>>().await;
    let server = Server::builder()
        .http2_keepalive_interval(Some(PING))
        .http2_keepalive_timeout(Some(PING))
        .add_service(health)
        .add_service(reflection)
        .add_service(inference)
        .add_service(workers);
    let stopped = stop.cancelled_owned();
    Ok(async move {
        // From now on the health service says that nothing new is taken.
        let stopped = async move {
            stopped.await;
            reporter
                .set_not_serving::<InferenceServer<InferenceService>>()
                .await;
        };
        server
            .serve_with_incoming_shutdown(listener.into_stream(), stopped)
            .await
            .map_err(|error| error.to_string())
    })
}
