//! A worker that serves, and how it ends.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use baton_engine::{EngineHandle, EngineThread};
use prometheus::Registry;
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    Admission, Identity,
    liveness::{AwaitingKv, Health, Liveness, Pulse},
    server::Server,
    worker::AtEnd,
};

/// Time that connections get to close after the last request ended.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// How often liveness is looked at, at most; a short stall limit is looked at four times in its span.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A serving worker. Dropping it is a crash in small: connections close and the engine stops.
pub struct RunningWorker {
    // Fields drop in this order: first nobody can reach the worker, then its engine ends.
    server: Server,
    background: Vec<AbortOnDropHandle<()>>,
    thread: EngineThread,
    identity: Arc<Identity>,
    engine: EngineHandle,
    admission: Admission,
    registry: Registry,
    health: watch::Receiver<Health>,
    drain_requested: watch::Receiver<Option<Duration>>,
    at_end: AtEnd,
}

pub(crate) struct Parts {
    pub(crate) identity: Arc<Identity>,
    pub(crate) engine: EngineHandle,
    pub(crate) thread: EngineThread,
    pub(crate) admission: Admission,
    pub(crate) registry: Registry,
    pub(crate) health: watch::Receiver<Health>,
    pub(crate) drain_requested: watch::Receiver<Option<Duration>>,
    pub(crate) server: Server,
    pub(crate) background: Vec<AbortOnDropHandle<()>>,
    pub(crate) at_end: AtEnd,
}

impl RunningWorker {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            server: parts.server,
            background: parts.background,
            thread: parts.thread,
            identity: parts.identity,
            engine: parts.engine,
            admission: parts.admission,
            registry: parts.registry,
            health: parts.health,
            drain_requested: parts.drain_requested,
            at_end: parts.at_end,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    #[must_use]
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// What `/metrics` shows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Takes nothing new from now on; what runs goes on.
    pub fn drain(&self) {
        self.admission.drain();
    }

    /// Resolves when the worker cannot go on, with the reason: the process is to exit and be started anew.
    pub async fn failed(&self) -> String {
        let mut health = self.health.clone();
        loop {
            let stopped = health.borrow_and_update().stopped.clone();
            match stopped {
                Some(reason) => return reason,
                // The monitor lives as long as this worker, so this cannot be its end.
                None if health.changed().await.is_err() => return "the health monitor vanished".into(),
                None => {}
            }
        }
    }

    /// Resolves when a router asked this worker to leave, with the time for running requests: call
    /// [`RunningWorker::shutdown`] then.
    pub async fn drain_requested(&self) -> Duration {
        let mut requested = self.drain_requested.clone();
        match requested.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(grace)) => *grace,
            _ => std::future::pending().await,
        }
    }

    /// Takes nothing new, waits up to `grace` for what runs, and ends. Whether everything had finished.
    pub async fn shutdown(self, grace: Duration) -> bool {
        self.admission.drain();
        let finished = tokio::time::timeout(grace, self.admission.idle()).await.is_ok();
        let thread = self.thread;
        // What is left fails with a clear error before its connection closes.
        let _ = tokio::task::spawn_blocking(move || thread.stop()).await;
        for close in self.at_end {
            close();
        }
        self.server.shutdown(CLOSE_GRACE).await;
        drop(self.background);
        finished
    }
}

/// Keeps the health of the worker, for HTTP and for gRPC.
pub(crate) fn watch_health(
    engine: EngineHandle,
    mut draining: watch::Receiver<bool>,
    awaiting_kv: AwaitingKv,
    stall: Duration,
    (health, reporter): (watch::Sender<Health>, HealthReporter),
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let start = Instant::now();
        let mut liveness = Liveness::new(stall, Duration::ZERO);
        let mut ticks = tokio::time::interval(LOOK_EVERY.min(stall / 4));
        let mut stopped = std::pin::pin!(engine.stopped());
        let mut ended: Option<String> = None;
        loop {
            let stalled = match liveness.look(start.elapsed(), &engine.load(), awaiting_kv.count()) {
                Pulse::Alive => None,
                Pulse::Stalled(since) => Some(since),
            };
            let now = Health {
                stopped: ended.clone(),
                stalled,
                draining: *draining.borrow_and_update(),
            };
            let status = if now.ready() {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            };
            reporter.set_service_status("", status).await;
            publish(&health, now);
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = draining.changed() => {}
                reason = &mut stopped, if ended.is_none() => match reason {
                    Some(reason) => ended = Some(format!("the engine stopped: {reason}")),
                    // As asked: whoever asked is ending this worker.
                    None => return,
                },
            }
        }
    }))
}

fn publish(health: &watch::Sender<Health>, now: Health) {
    health.send_if_modified(|last| {
        let (was_alive, is_alive) = (last.problem().is_none(), now.problem().is_none());
        if let (true, Some(reason)) = (was_alive, now.problem()) {
            tracing::error!(reason, "this worker is not alive");
        } else if !was_alive && is_alive {
            tracing::info!("this worker is alive again");
        }
        let changed = *last != now;
        *last = now;
        changed
    });
}
