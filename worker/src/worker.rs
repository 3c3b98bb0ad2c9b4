//! A worker on its way up: what both roles do before and after adding their services.

use std::{io, sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use baton_engine::{
    BoxError, Engine, EngineConfig, EngineError, EngineHandle, EngineMetrics, EngineThread,
    executor::{Executor, Wake},
};
use baton_kvcache::transfer::{LinkIdentity, TransferConfig, TransferError, TransferMetrics};
use baton_proto::{
    BlockHasher, InvalidConfig, PROTOCOL_VERSION,
    v1::{Capacity, WorkerHello, WorkerRole},
};
use prometheus::{Encoder as _, Registry, TextEncoder};
use tokio::{net::TcpListener, sync::watch};
use tonic::service::Routes;

use crate::{
    Admission, Identity, Intake, RunningWorker, ServedModel, WorkerConfig,
    liveness::{AwaitingKv, Health},
    membership::{Member, MembershipConfig, follow_load, join},
    metrics::WorkerMetrics,
    random,
    request::RequestBounds,
    running::{Parts, watch_health},
    server::{Server, ServerLimits},
};

/// Everything that a worker is started with, whatever its role.
pub struct WorkerSetup<F> {
    pub worker: WorkerConfig,
    pub engine: EngineConfig,
    pub transfer: TransferConfig,
    pub model: ServedModel,
    /// Opens the device, on the engine's thread.
    pub executor: F,
}

/// A worker whose engine runs and whose port is bound, but which does not serve yet.
pub struct Worker {
    pub identity: Arc<Identity>,
    pub engine: EngineHandle,
    pub intake: Intake,
    /// What `/metrics` shows.
    pub registry: Registry,
    pub config: WorkerConfig,
    pub transfer: TransferConfig,
    pub transfer_metrics: TransferMetrics,
    /// Requests that wait for another worker's KV, which liveness must not count as stuck.
    pub awaiting_kv: AwaitingKv,
    capacity: Capacity,
    thread: EngineThread,
    metrics: WorkerMetrics,
    listener: TcpListener,
    at_end: AtEnd,
}

/// Closes what a role holds open beside its requests.
pub(crate) type AtEnd = Vec<Box<dyn FnOnce() + Send + Sync>>;

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    #[error("cannot listen on {addr} (worker.listen): {source}")]
    Listen { addr: String, source: io::Error },
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the thread that opens the device panicked")]
    Panicked,
}

impl Worker {
    /// Binds the port, opens the device and starts the engine.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn prepare<F>(role: WorkerRole, setup: WorkerSetup<F>) -> Result<Self, StartError>
    where
        F: FnOnce(Wake) -> Result<Box<dyn Executor>, BoxError> + Send + 'static,
    {
        let WorkerSetup {
            worker: config,
            engine: engine_config,
            transfer,
            model,
            executor,
        } = setup;
        config.validate()?;
        transfer.validate()?;
        let listen_error = |source| StartError::Listen {
            addr: config.listen.to_string(),
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
        let bound = listener.local_addr().map_err(listen_error)?;
        let identity = Arc::new(Identity::new(&config, role, model, bound));
        let registry = Registry::new();
        let metrics = WorkerMetrics::new(&registry)?;
        let engine_metrics = EngineMetrics::new(&registry)?;
        let transfer_metrics = TransferMetrics::new(&registry)?;
        let fingerprint = &identity.model.fingerprint;
        let hasher = BlockHasher::new(
            config
                .block_key()
                .unwrap_or_else(|| random::bits128().to_be_bytes()),
            engine_config.page_tokens,
            &fingerprint.model_revision,
            &fingerprint.kv_dtype,
        );
        let (max_running, max_waiting) = (engine_config.max_running, engine_config.max_waiting);
        let engine_hasher = hasher.clone();
        // Opening a device reads and converts weights: not on a thread that serves.
        let (engine, thread) = tokio::task::spawn_blocking(move || {
            Engine::spawn(engine_config, executor, engine_hasher, engine_metrics)
        })
        .await
        .map_err(|_| StartError::Panicked)??;
        let limits = engine.limits();
        let intake = Intake {
            model: identity.model.name.clone(),
            bounds: RequestBounds {
                vocab: limits.vocab,
                max_choices: config.max_choices,
            },
            hasher,
            admission: Admission::new(config.max_requests, metrics.clone()),
            engine: engine.clone(),
            metrics: metrics.clone(),
        };
        let capacity = Capacity {
            max_running: max_running.min(limits.slots),
            max_waiting: max_waiting as u32,
            context_tokens: limits.context_tokens,
            total_pages: limits.pages,
            page_tokens: fingerprint.page_tokens,
        };
        Ok(Self {
            identity,
            engine,
            intake,
            registry,
            config,
            transfer,
            transfer_metrics,
            awaiting_kv: AwaitingKv::default(),
            capacity,
            thread,
            metrics,
            listener,
            at_end: AtEnd::new(),
        })
    }

    /// Who this worker is on a KV link.
    #[must_use]
    pub fn link_identity(&self) -> LinkIdentity {
        LinkIdentity {
            worker_id: self.identity.worker_id.clone(),
            incarnation: self.identity.incarnation,
            fingerprint: self.identity.model.fingerprint.clone(),
        }
    }

    /// Has `close` called when the last request has ended: for links that would otherwise keep connections open.
    pub fn at_end(&mut self, close: impl FnOnce() + Send + Sync + 'static) {
        self.at_end.push(Box::new(close));
    }

    /// Serves `services`, health, reflection and metrics, and joins the routers.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn serve(self, services: Routes) -> Result<RunningWorker, StartError> {
        let hello = self.hello();
        let (health_sender, health) = watch::channel(Health::default());
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(baton_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        let router = services
            .add_service(health_service)
            .add_service(reflection)
            .into_axum_router()
            .merge(http_routes(self.registry.clone(), health.clone()));
        let limits = ServerLimits {
            connections: self.config.max_connections,
            requests: self.config.max_requests,
        };
        let listen_error = |source| StartError::Listen {
            addr: self.config.listen.to_string(),
            source,
        };
        let server = Server::start(self.listener, router, limits, self.metrics.connections.clone())
            .map_err(listen_error)?;

        let admission = self.intake.admission.clone();
        let monitor = watch_health(
            self.engine.clone(),
            admission.draining(),
            self.awaiting_kv,
            Duration::from_secs_f64(self.config.stall_seconds),
            (health_sender, reporter),
        );
        let (load, sampler) = follow_load(
            self.engine.clone(),
            Duration::from_secs_f64(self.config.report_min_seconds),
        );
        let (drain_sender, drain_requested) = watch::channel(None);
        let door = admission.clone();
        let member = Member {
            hello,
            load,
            draining: admission.draining(),
            on_drain: Arc::new(move |grace| {
                door.drain();
                drain_sender.send_replace(Some(grace));
            }),
            metrics: self.metrics,
        };
        let membership = join(
            MembershipConfig {
                routers: self.config.routers,
                resolve_every: Duration::from_secs_f64(self.config.resolve_seconds),
                report_max: Duration::from_secs_f64(self.config.report_max_seconds),
            },
            member,
        );
        tracing::info!(
            worker_id = self.identity.worker_id,
            role = crate::identity::role_name(self.identity.role),
            model = self.identity.model.name,
            url = self.identity.url,
            "worker serves"
        );
        Ok(RunningWorker::new(Parts {
            identity: self.identity,
            engine: self.engine,
            thread: self.thread,
            admission,
            registry: self.registry,
            health,
            drain_requested,
            server,
            background: vec![monitor, sampler, membership],
            at_end: self.at_end,
        }))
    }

    fn hello(&self) -> WorkerHello {
        WorkerHello {
            worker_id: self.identity.worker_id.clone(),
            incarnation: self.identity.incarnation,
            protocol_version: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: self.identity.role.into(),
            model: self.identity.model.name.clone(),
            addr: self.identity.url.clone(),
            fingerprint: Some(self.identity.model.fingerprint.clone()),
            capacity: Some(self.capacity),
            device: self.identity.model.device.clone(),
        }
    }
}

/// `/metrics`, `/health` (is it alive?) and `/ready` (does it want work?).
fn http_routes(registry: Registry, health: watch::Receiver<Health>) -> Router {
    let ready = health.clone();
    Router::new()
        .route("/metrics", get(metrics).with_state(registry))
        .route(
            "/health",
            get(move || async move { answer(&health.borrow(), false) }),
        )
        .route(
            "/ready",
            get(move || async move { answer(&ready.borrow(), true) }),
        )
}

async fn metrics(State(registry): State<Registry>) -> Result<String, StatusCode> {
    let mut text = Vec::new();
    TextEncoder::new()
        .encode(&registry.gather(), &mut text)
        .ok()
        .and_then(|()| String::from_utf8(text).ok())
        .ok_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn answer(health: &Health, wants_ready: bool) -> (StatusCode, String) {
    match health.problem() {
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        None if wants_ready && health.draining => (StatusCode::SERVICE_UNAVAILABLE, "draining\n".into()),
        None => (StatusCode::OK, "ok\n".into()),
    }
}
