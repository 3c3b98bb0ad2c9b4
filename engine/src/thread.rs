//! The engine's own thread: it owns the executor and the scheduler.

use std::{
    sync::{Arc, atomic::AtomicU64, mpsc::sync_channel},
    thread,
};

use baton_proto::{BlockHasher, InvalidConfig};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::{
    config::EngineConfig,
    executor::{Executor, Wake},
    handle::{EngineHandle, Exit, Shared},
    inbox::Inbox,
    load::EngineLoad,
    metrics::EngineMetrics,
    request::RequestError,
    scheduler::RequestLimits,
};

/// Starts engine threads.
pub struct Engine;

/// Ends its engine thread when dropped.
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
        let inbox = Arc::new(Inbox::default());
        let (ready, opened) = sync_channel(1);
        let (exit_sender, exit) = watch::channel(None);
        let thread_inbox = Arc::clone(&inbox);
        let thread = thread::Builder::new().name("baton-engine".into()).spawn(move || {
            let current = thread::current();
            thread_inbox.attach(current.clone());
            let wake: Wake = Arc::new(move || current.unpark());
            let executor = match executor_factory(wake) {
                Ok(executor) => executor,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let _ = ready.send(Ok((executor.limits(), executor.kv_memory())));
            let _ = hasher;
            while !thread_inbox.take().stopping {
                thread::park();
            }
            thread_inbox.close(RequestError::EngineStopped("stopped".into()));
            exit_sender.send_replace(Some(Exit::Stopped));
        })?;
        let (limits, memory) = opened
            .recv()
            .map_err(|_| EngineError::Executor("the engine thread panicked".into()))?
            .map_err(EngineError::Executor)?;
        let page_tokens = memory.layout().page_tokens as u32;
        let shared = Shared {
            inbox: Arc::clone(&inbox),
            load: RwLock::new(EngineLoad::default()),
            memory,
            executor: limits,
            limits: RequestLimits::new(limits, page_tokens),
            max_waiting: config.max_waiting,
            event_capacity: config.event_capacity,
            metrics,
            exit,
            next_key: AtomicU64::new(1),
        };
        let handle = EngineHandle {
            shared: Arc::new(shared),
        };
        let owner = EngineThread {
            inbox,
            thread: Some(thread),
        };
        Ok((handle, owner))
    }
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
