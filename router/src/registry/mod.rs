//! The workers that have joined this router: soft state, relearned after a restart.

mod membership;
mod worker;

pub use membership::{JoinError, Membership};
pub use worker::{Assignment, Worker};

use std::{sync::Arc, time::Duration};

use baton_proto::v1::{WorkerHello, WorkerRole};
use dashmap::{DashMap, Entry};
use tonic::transport::Endpoint;

use crate::{metrics::RouterMetrics, policy::WorkerView};

/// Everybody who has joined, by worker id.
#[derive(Debug)]
pub struct Registry {
    workers: DashMap<String, Arc<Worker>>,
    settings: RegistrySettings,
    metrics: RouterMetrics,
}

/// What the registry needs to know of the configuration.
#[derive(Clone, Debug)]
pub struct RegistrySettings {
    pub max_workers: usize,
    pub connect_timeout: Duration,
}

impl Registry {
    #[must_use]
    pub fn new(settings: RegistrySettings, metrics: RouterMetrics) -> Arc<Self> {
        Arc::new(Self {
            workers: DashMap::new(),
            settings,
            metrics,
        })
    }

    /// Takes a worker in. Of two live workers with one id the one that joined later stays; the other's stream is ended,
    /// and it is not let in again while its successor lives.
    ///
    /// # Errors
    /// [`JoinError`] with what is wrong with the worker's introduction.
    pub fn join(self: &Arc<Self>, hello: WorkerHello) -> Result<Membership, JoinError> {
        membership::check(&hello)?;
        let endpoint = Endpoint::from_shared(hello.addr.clone())
            .map_err(|error| JoinError::BadAddress {
                worker_id: hello.worker_id.clone(),
                addr: hello.addr.clone(),
                detail: error.to_string(),
            })?
            .connect_timeout(self.settings.connect_timeout)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(Duration::from_secs(10)))
            // A worker whose machine is gone sends no reset: pings find it.
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5));
        let worker_id = hello.worker_id.clone();
        let full = self.workers.len() >= self.settings.max_workers && !self.workers.contains_key(&worker_id);
        if full {
            return Err(JoinError::Full(self.settings.max_workers));
        }
        let worker = match self.workers.entry(worker_id) {
            Entry::Vacant(slot) => {
                let worker = Arc::new(Worker::new(hello, endpoint.connect_lazy(), Vec::new()));
                slot.insert(Arc::clone(&worker));
                worker
            }
            Entry::Occupied(mut slot) => {
                let old = Arc::clone(slot.get());
                let superseded = old.successors_refuse(&hello)?;
                let worker = Arc::new(Worker::new(hello, endpoint.connect_lazy(), superseded));
                slot.insert(Arc::clone(&worker));
                old.end();
                worker
            }
        };
        self.count();
        Ok(Membership::new(Arc::clone(self), worker))
    }

    /// All workers as the policy sees them now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<WorkerView> {
        self.workers.iter().map(|entry| entry.view()).collect()
    }

    /// The worker, if it is still the incarnation that was planned with.
    #[must_use]
    pub fn get(&self, worker_id: &str, incarnation: u64) -> Option<Arc<Worker>> {
        let worker = self.workers.get(worker_id)?;
        (worker.hello().incarnation == incarnation).then(|| Arc::clone(&worker))
    }

    /// Whether a request for `model` could be sent anywhere.
    #[must_use]
    pub fn is_ready(&self, model: &str) -> bool {
        self.workers.iter().any(|entry| {
            let view = entry.view();
            view.role == WorkerRole::Decode && view.model == model && !view.leaving
        })
    }

    /// The longest sequence that some decode worker of `model` takes; `None` while there is no such worker.
    #[must_use]
    pub fn context_tokens(&self, model: &str) -> Option<u32> {
        self.workers
            .iter()
            .map(|entry| entry.view())
            .filter(|view| view.role == WorkerRole::Decode && view.model == model)
            .map(|view| view.capacity.context_tokens)
            .filter(|tokens| *tokens > 0)
            .max()
    }

    fn remove(&self, worker: &Arc<Worker>) {
        self.workers.remove_if(&worker.hello().worker_id, |_, current| {
            Arc::ptr_eq(current, worker)
        });
        self.count();
    }

    fn count(&self) {
        let mut counts = [(WorkerRole::Prefill, 0), (WorkerRole::Decode, 0)];
        for entry in &self.workers {
            for (role, count) in &mut counts {
                *count += i64::from(entry.hello().role() == *role);
            }
        }
        for (role, count) in counts {
            self.metrics
                .workers
                .with_label_values(&[worker::role_name(role)])
                .set(count);
        }
    }
}
