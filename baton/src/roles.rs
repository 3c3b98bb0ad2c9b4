//! Each part of the system as this process runs it: alone, or under `baton up`.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use baton_decode_worker::DecodeWorker;
use baton_engine::{
    BoxError, EngineConfig,
    cpu::{CpuExecutor, CpuExecutorConfig, Model},
    executor::{Executor, Wake},
};
use baton_prefill_worker::PrefillWorker;
use baton_proto::v1::KvFingerprint;
use baton_router::{Router, RunningRouter};
use baton_worker::{RunningWorker, ServedModel, WorkerConfig, WorkerSetup};
use tokio::{
    io::AsyncReadExt as _,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{cli::SupervisedArgs, config::BatonConfig, up::Announcement};

/// Time that streams get when a router is told to stop and its configuration names none of its own.
const ROUTER_GRACE: Duration = Duration::from_secs(30);

/// Runs a router until it is told to stop.
///
/// # Errors
/// When it cannot start.
pub async fn router(config: BatonConfig, args: SupervisedArgs) -> anyhow::Result<()> {
    let mut stop = Stop::listen(args)?;
    let router = start_router(&config).await?;
    announce(
        args,
        router.http_addr.to_string(),
        Some(router.grpc_addr.to_string()),
    )?;
    stop.wanted().await;
    tokio::select! {
        () = router.shutdown(ROUTER_GRACE) => {}
        () = stop.insisted() => {}
    }
    Ok(())
}

/// Runs a prefill worker until it is told to stop, or fails.
///
/// # Errors
/// When it cannot start, or its engine cannot go on.
pub async fn prefill_worker(config: BatonConfig, args: SupervisedArgs) -> anyhow::Result<()> {
    let stop = Stop::listen(args)?;
    let worker = start_prefill_worker(&config, None).await?;
    serve_worker(worker, &config, args, stop).await
}

/// Runs a decode worker until it is told to stop, or fails.
///
/// # Errors
/// When it cannot start, or its engine cannot go on.
pub async fn decode_worker(config: BatonConfig, args: SupervisedArgs) -> anyhow::Result<()> {
    let stop = Stop::listen(args)?;
    let worker = start_decode_worker(&config, None).await?;
    serve_worker(worker, &config, args, stop).await
}

/// Starts a router in this process.
///
/// # Errors
/// When its addresses are taken, or its model cannot be read.
pub async fn start_router(config: &BatonConfig) -> anyhow::Result<RunningRouter> {
    Router::start(config.router.clone(), prometheus::Registry::new())
        .await
        .context("the router did not start")
}

/// Starts a prefill worker in this process; without a `model`, it is read from `worker.model`.
///
/// # Errors
/// When the model cannot be read or run, or the address is taken.
pub async fn start_prefill_worker(
    config: &BatonConfig,
    model: Option<Arc<Model>>,
) -> anyhow::Result<RunningWorker> {
    let setup = setup(config, model).await?;
    PrefillWorker::start(setup)
        .await
        .context("the prefill worker did not start")
}

/// Starts a decode worker in this process; without a `model`, it is read from `worker.model`.
///
/// # Errors
/// As [`start_prefill_worker`].
pub async fn start_decode_worker(
    config: &BatonConfig,
    model: Option<Arc<Model>>,
) -> anyhow::Result<RunningWorker> {
    let setup = setup(config, model).await?;
    DecodeWorker::start(setup, config.decode.clone())
        .await
        .context("the decode worker did not start")
}

/// Reads a checkpoint, which workers of one process can share.
///
/// # Errors
/// Naming the file, field or tensor that is not as it must be.
pub async fn load_model(path: &Path) -> anyhow::Result<Arc<Model>> {
    let path = path.to_owned();
    // Reads and converts weights: not on a thread that serves.
    let loaded =
        tokio::task::spawn_blocking(move || Model::load(&path).map_err(|error| (path, error))).await?;
    let model = loaded.map_err(|(path, error)| {
        anyhow::Error::new(error).context(format!(
            "cannot load the model {} (worker.model, or --model)",
            path.display()
        ))
    })?;
    Ok(Arc::new(model))
}

type ExecutorFactory = Box<dyn FnOnce(Wake) -> Result<Box<dyn Executor>, BoxError> + Send>;

async fn setup(
    config: &BatonConfig,
    model: Option<Arc<Model>>,
) -> anyhow::Result<WorkerSetup<ExecutorFactory>> {
    let BatonConfig {
        worker,
        engine,
        transfer,
        ..
    } = config.clone();
    let model = match model {
        Some(model) => model,
        None => load_model(&worker.model).await?,
    };
    let served = served_model(&worker, &engine, &model);
    let sizes = CpuExecutorConfig::from(&engine);
    let executor: ExecutorFactory =
        Box::new(move |wake| Ok(Box::new(CpuExecutor::new(model, &sizes, wake)?)));
    Ok(WorkerSetup {
        worker,
        engine,
        transfer,
        model: served,
        executor,
    })
}

fn served_model(worker: &WorkerConfig, engine: &EngineConfig, model: &Model) -> ServedModel {
    let shape = model.config();
    ServedModel {
        name: worker.served_name(),
        fingerprint: KvFingerprint {
            model_revision: model.revision().to_owned(),
            kv_dtype: engine.kv_dtype.name().to_owned(),
            page_tokens: engine.page_tokens as u32,
            layers: shape.layers as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.head_dim as u32,
            tensor_parallel: 1,
        },
        device: "cpu".to_owned(),
    }
}

async fn serve_worker(
    worker: RunningWorker,
    config: &BatonConfig,
    args: SupervisedArgs,
    mut stop: Stop,
) -> anyhow::Result<()> {
    announce(args, worker.addr().to_string(), None)?;
    let id = worker.identity().worker_id.clone();
    let grace = tokio::select! {
        reason = worker.failed() => bail!("{id} cannot go on: {reason}"),
        () = stop.wanted() => config.worker.drain_grace(),
        grace = worker.drain_requested() => grace,
    };
    tokio::select! {
        finished = worker.shutdown(grace) => if !finished {
            tracing::warn!(worker = id, "stopped with requests unfinished after {} s of grace", grace.as_secs());
        },
        () = stop.insisted() => {}
    }
    Ok(())
}

fn announce(args: SupervisedArgs, addr: String, grpc_addr: Option<String>) -> anyhow::Result<()> {
    if args.supervised {
        println!("{}", serde_json::to_string(&Announcement { addr, grpc_addr })?);
    }
    Ok(())
}

/// Ctrl-C and SIGTERM.
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    /// # Errors
    /// When handlers cannot be installed.
    pub fn listen() -> anyhow::Result<Self> {
        let handler = |kind| signal(kind).context("cannot handle signals");
        Ok(Self {
            interrupt: handler(SignalKind::interrupt())?,
            terminate: handler(SignalKind::terminate())?,
        })
    }

    /// Resolves at the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Reasons for this process to stop: signals, and under `baton up` the end of standard input, which also comes when the
/// parent is killed.
struct Stop {
    interrupts: Interrupts,
    supervised: bool,
}

impl Stop {
    fn listen(args: SupervisedArgs) -> anyhow::Result<Self> {
        Ok(Self {
            interrupts: Interrupts::listen()?,
            supervised: args.supervised,
        })
    }

    async fn wanted(&mut self) {
        tokio::select! {
            () = self.interrupts.next() => {}
            () = end_of_input(), if self.supervised => {}
        }
    }

    async fn insisted(&mut self) {
        self.interrupts.next().await;
    }
}

async fn end_of_input() {
    let mut stdin = tokio::io::stdin();
    let mut nothing = [0; 64];
    while !matches!(stdin.read(&mut nothing).await, Ok(0) | Err(_)) {}
}
