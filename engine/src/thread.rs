//! The engine's own thread: it owns the executor and the scheduler.

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, atomic::AtomicU64, mpsc::sync_channel},
    thread,
};

use baton_proto::{BlockHasher, InvalidConfig};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::{
    config::EngineConfig,
    executor::{Executor, ExecutorLimits, Wake},
    handle::{EngineHandle, Exit, Shared},
    inbox::Inbox,
    load::EngineLoad,
    metrics::EngineMetrics,
    request::RequestError,
    scheduler::{RequestLimits, Scheduler},
    turn::Turns,
};

/// Starts engine threads.
pub struct Engine;

/// Owns an engine thread, which is told to end when this is dropped.
#[must_use = "the engine ends when this is dropped"]
pub struct EngineThread {
    inbox: Arc<Inbox>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    #[error("could not start the engine thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error("could not open the device: {0}")]
    Executor(#[source] BoxError),
}

/// Whatever an executor's constructor reports.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Engine {
    /// Starts the thread, makes the executor on it, and returns when that is ready.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn spawn<F>(
        config: EngineConfig,
        executor_factory: F,
        hasher: BlockHasher,
        metrics: EngineMetrics,
    ) -> Result<(EngineHandle, EngineThread), EngineError>
    where
        F: FnOnce(Wake) -> Result<Box<dyn Executor>, BoxError> + Send + 'static,
    {
        config.validate()?;
        let (ready, opened) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("baton-engine".into())
            .spawn(move || {
                let current = thread::current();
                let wake: Wake = Arc::new(move || current.unpark());
                match executor_factory(Arc::clone(&wake)) {
                    Err(error) => drop(ready.send(Err(error))),
                    Ok(executor) => {
                        let (shared, exit) = share(&config, executor.as_ref(), metrics);
                        let page_tokens = shared.memory.layout().page_tokens as u32;
                        let scheduler = Scheduler::new(config, shared.executor, page_tokens, hasher);
                        // Transports let go of pages on threads of their own.
                        scheduler.wake_on_return(wake);
                        let shared = Arc::new(shared);
                        drop(ready.send(Ok(Arc::clone(&shared))));
                        run(
                            Turns::new(executor, scheduler, Arc::clone(&shared)),
                            &shared,
                            &exit,
                        );
                    }
                }
            })?;
        let shared = opened
            .recv()
            .map_err(|_| EngineError::Executor("the engine thread panicked".into()))?
            .map_err(EngineError::Executor)?;
        let owner = EngineThread {
            inbox: Arc::clone(&shared.inbox),
            thread: Some(thread),
        };
        Ok((EngineHandle { shared }, owner))
    }
}

/// What handles and thread have in common. Made on the engine thread.
fn share(
    config: &EngineConfig,
    executor: &dyn Executor,
    metrics: EngineMetrics,
) -> (Shared, watch::Sender<Option<Exit>>) {
    let (exit_sender, exit) = watch::channel(None);
    let memory = executor.kv_memory();
    let limits = executor.limits();
    let limits = ExecutorLimits {
        slots: limits.slots.min(config.max_running),
        ..limits
    };
    let inbox = Arc::new(Inbox::new(thread::current()));
    let shared = Shared {
        inbox,
        load: RwLock::new(EngineLoad::default()),
        limits: RequestLimits::new(limits, memory.layout().page_tokens as u32),
        memory,
        executor: limits,
        max_waiting: config.max_waiting,
        event_capacity: config.event_capacity,
        metrics,
        exit,
        next_key: AtomicU64::new(1),
    };
    (shared, exit_sender)
}

/// Runs to the end, whatever that is, and makes it known.
fn run(mut turns: Turns, shared: &Shared, exit: &watch::Sender<Option<Exit>>) {
    tracing::info!(limits = ?shared.executor, "engine started");
    let ended = panic::catch_unwind(AssertUnwindSafe(|| turns.run()));
    let end = match ended {
        Ok(Ok(())) => Exit::Stopped,
        Ok(Err(failure)) => Exit::Failed(failure.to_string()),
        Err(payload) => Exit::Failed(format!(
            "the engine thread panicked: {}",
            message(payload.as_ref())
        )),
    };
    let reason = match &end {
        Exit::Stopped => {
            tracing::info!("engine stopped");
            "it was stopped".to_owned()
        }
        Exit::Failed(reason) => {
            tracing::error!(%reason, "engine failed");
            reason.clone()
        }
    };
    // First the reason, then the requests: a handle that finds its channel closed looks for it.
    exit.send_replace(Some(end));
    turns.abandon(&RequestError::EngineStopped(reason));
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl EngineThread {
    /// Ends the engine now: open requests fail with [`RequestError::EngineStopped`]. Blocks until the thread is gone.
    pub fn stop(mut self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported through `EngineHandle::stopped`.
            let _ = thread.join();
        }
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.inbox.stop();
    }
}
