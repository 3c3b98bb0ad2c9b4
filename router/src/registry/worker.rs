//! One worker that has joined.

use std::sync::Arc;

use baton_proto::v1::{WorkerHello, WorkerLoad, WorkerRole};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::JoinError;
use crate::policy::{Assigned, WorkerView};

/// Incarnations that stay refused: more live processes with one id are a mistake that no memory helps against.
const REMEMBERED: usize = 16;

/// A joined worker: what it said of itself, its latest load, and how to reach it.
#[derive(Debug)]
pub struct Worker {
    hello: WorkerHello,
    channel: Channel,
    live: Mutex<Live>,
    /// Incarnations with this id that were replaced.
    superseded: Vec<u64>,
    ended: CancellationToken,
}

#[derive(Debug, Default)]
struct Live {
    load: WorkerLoad,
    leaving: bool,
    /// Counts load reports: what was assigned before the last one is in it.
    reports: u64,
    assigned: Assigned,
}

/// A request that was sent to a worker. Dropping it takes the request off the worker's load, unless a report has
/// counted it by then.
#[derive(Debug)]
pub struct Assignment {
    worker: Arc<Worker>,
    reports: u64,
    prompt_tokens: u64,
}

impl Worker {
    pub(super) fn new(hello: WorkerHello, channel: Channel, superseded: Vec<u64>) -> Self {
        let capacity = hello.capacity.unwrap_or_default();
        // Until the first report arrives, a worker that has just joined counts as idle.
        let load = WorkerLoad {
            free_pages: capacity.total_pages,
            ..Default::default()
        };
        Self {
            hello,
            channel,
            live: Mutex::new(Live {
                load,
                ..Default::default()
            }),
            superseded,
            ended: CancellationToken::new(),
        }
    }

    #[must_use]
    pub fn hello(&self) -> &WorkerHello {
        &self.hello
    }

    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Counts a request against this worker until its next report.
    #[must_use]
    pub fn assign(self: &Arc<Self>, prompt_tokens: u32) -> Assignment {
        let mut live = self.live.lock();
        live.assigned.requests += 1;
        live.assigned.prompt_tokens += u64::from(prompt_tokens);
        Assignment {
            worker: Arc::clone(self),
            reports: live.reports,
            prompt_tokens: prompt_tokens.into(),
        }
    }

    #[must_use]
    pub fn view(&self) -> WorkerView {
        let live = self.live.lock();
        WorkerView {
            worker_id: self.hello.worker_id.clone(),
            incarnation: self.hello.incarnation,
            role: self.hello.role(),
            addr: self.hello.addr.clone(),
            model: self.hello.model.clone(),
            fingerprint: self.hello.fingerprint.clone().unwrap_or_default(),
            capacity: self.hello.capacity.unwrap_or_default(),
            load: live.load,
            assigned: live.assigned,
            leaving: live.leaving,
        }
    }

    pub(super) fn report(&self, load: WorkerLoad) {
        let mut live = self.live.lock();
        live.load = load;
        live.reports += 1;
        live.assigned = Assigned::default();
    }

    pub(super) fn leave(&self) {
        self.live.lock().leaving = true;
    }

    /// Resolves when another worker has taken this one's id.
    pub(super) async fn superseded(&self) {
        self.ended.cancelled().await;
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// What the worker that replaces this one has to remember.
    pub(super) fn successors_refuse(&self, next: &WorkerHello) -> Result<Vec<u64>, JoinError> {
        if self.superseded.contains(&next.incarnation) {
            return Err(JoinError::Superseded(next.worker_id.clone()));
        }
        let mut superseded = self.superseded.clone();
        // The same process that dials again replaces only its own broken stream.
        if self.hello.incarnation != next.incarnation {
            superseded.push(self.hello.incarnation);
        }
        let excess = superseded.len().saturating_sub(REMEMBERED);
        superseded.drain(..excess);
        Ok(superseded)
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        let mut live = self.worker.live.lock();
        if live.reports == self.reports {
            live.assigned.requests = live.assigned.requests.saturating_sub(1);
            live.assigned.prompt_tokens = live.assigned.prompt_tokens.saturating_sub(self.prompt_tokens);
        }
    }
}

pub(super) fn role_name(role: WorkerRole) -> &'static str {
    match role {
        WorkerRole::Prefill => "prefill",
        WorkerRole::Decode => "decode",
        WorkerRole::Unspecified => "unspecified",
    }
}
