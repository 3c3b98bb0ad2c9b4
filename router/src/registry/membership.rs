//! A worker's stay in the registry.

use std::sync::Arc;

use baton_proto::{
    OLDEST_PROTOCOL_VERSION,
    v1::{WorkerHello, WorkerLoad, WorkerRole},
};

use super::{Registry, Worker};

/// Why a worker is not let in, or not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error(
        "worker {worker_id} speaks protocol version {found}, this router needs at least {oldest}: upgrade the worker"
    )]
    TooOld {
        worker_id: String,
        found: u32,
        oldest: u32,
    },
    #[error("a worker's hello lacks {0}")]
    Incomplete(&'static str),
    #[error("worker {worker_id} gives {addr:?} as its address: {detail}")]
    BadAddress {
        worker_id: String,
        addr: String,
        detail: String,
    },
    #[error("another process has joined as worker {0}: give each worker its own id")]
    Superseded(String),
    #[error("this router takes no more than {0} workers: raise router.max_workers")]
    Full(usize),
}

/// Dropping it takes the worker out of the registry, unless another has taken its place.
#[derive(Debug)]
pub struct Membership {
    registry: Arc<Registry>,
    worker: Arc<Worker>,
}

impl Membership {
    pub(super) fn new(registry: Arc<Registry>, worker: Arc<Worker>) -> Self {
        Self { registry, worker }
    }

    pub fn report(&self, load: WorkerLoad) {
        self.worker.report(load);
    }

    /// The worker drains: it keeps what it has and gets nothing new.
    pub fn leave(&self) {
        self.worker.leave();
    }

    /// Resolves when another worker has taken this one's id.
    pub async fn superseded(&self) {
        self.worker.superseded().await;
    }

    #[must_use]
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.registry.remove(&self.worker);
    }
}

pub(super) fn check(hello: &WorkerHello) -> Result<(), JoinError> {
    if hello.protocol_version < OLDEST_PROTOCOL_VERSION {
        return Err(JoinError::TooOld {
            worker_id: hello.worker_id.clone(),
            found: hello.protocol_version,
            oldest: OLDEST_PROTOCOL_VERSION,
        });
    }
    let required = [
        ("worker_id", hello.worker_id.is_empty()),
        ("model", hello.model.is_empty()),
        ("role", hello.role() == WorkerRole::Unspecified),
        ("fingerprint", hello.fingerprint.is_none()),
        ("capacity", hello.capacity.is_none()),
    ];
    match required.into_iter().find(|(_, missing)| *missing) {
        Some((field, _)) => Err(JoinError::Incomplete(field)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_proto::v1::{Capacity, KvFingerprint};

    use super::{super::RegistrySettings, *};
    use crate::metrics::RouterMetrics;

    fn registry(max_workers: usize) -> Arc<Registry> {
        let settings = RegistrySettings {
            max_workers,
            connect_timeout: Duration::from_secs(1),
        };
        Registry::new(
            settings,
            RouterMetrics::new(&prometheus::Registry::new()).expect("fresh registry"),
        )
    }

    fn hello(worker_id: &str, incarnation: u64) -> WorkerHello {
        WorkerHello {
            worker_id: worker_id.into(),
            incarnation,
            protocol_version: OLDEST_PROTOCOL_VERSION,
            version: "0".into(),
            role: WorkerRole::Decode.into(),
            model: "tiny".into(),
            addr: "http://127.0.0.1:1".into(),
            fingerprint: Some(KvFingerprint::default()),
            capacity: Some(Capacity::default()),
            device: "cpu".into(),
        }
    }

    #[tokio::test]
    async fn members_come_and_go() {
        let registry = registry(2);
        let first = registry.join(hello("a", 1)).expect("joins");
        assert!(registry.is_ready("tiny") && !registry.is_ready("other"));
        first.leave();
        assert!(!registry.is_ready("tiny"));
        let _second = registry.join(hello("b", 1)).expect("joins");
        assert_eq!(
            registry.join(hello("c", 1)).expect_err("full"),
            JoinError::Full(2)
        );
        drop(first);
        assert_eq!(registry.snapshot().len(), 1);
        assert!(registry.get("b", 1).is_some() && registry.get("b", 2).is_none());
    }

    #[tokio::test]
    async fn the_later_of_two_with_one_id_stays_and_the_other_stays_out() {
        let registry = registry(2);
        let old = registry.join(hello("a", 1)).expect("joins");
        let new = registry.join(hello("a", 2)).expect("takes over");
        old.superseded().await;
        drop(old);
        assert!(registry.get("a", 2).is_some());
        assert_eq!(
            registry.join(hello("a", 1)).expect_err("is out"),
            JoinError::Superseded("a".into())
        );
        // The same process dials again before its old stream has ended.
        let again = registry.join(hello("a", 2)).expect("same process");
        drop(new);
        assert!(registry.get("a", 2).is_some());
        drop(again);
        let _back = registry.join(hello("a", 1)).expect("the id is free");
    }

    #[tokio::test]
    async fn incomplete_and_old_workers_are_refused_by_name() {
        let registry = registry(2);
        let mut old = hello("ancient", 1);
        old.protocol_version = 0;
        let refused = registry.join(old).expect_err("too old").to_string();
        assert!(
            refused.contains("ancient") && refused.contains("at least 1"),
            "{refused}"
        );
        let mut nowhere = hello("a", 1);
        nowhere.addr = "not an address".into();
        assert!(matches!(
            registry.join(nowhere),
            Err(JoinError::BadAddress { .. })
        ));
        let mut nobody = hello("a", 1);
        nobody.role = 0;
        assert_eq!(
            registry.join(nobody).expect_err("no role"),
            JoinError::Incomplete("role")
        );
    }

    #[tokio::test]
    async fn assigned_work_counts_until_it_ends_or_is_reported() {
        let registry = registry(1);
        let member = registry.join(hello("a", 1)).expect("joins");
        let first = member.worker().assign(100);
        let second = member.worker().assign(10);
        assert_eq!(member.worker().view().assigned.prompt_tokens, 110);
        drop(second);
        assert_eq!(member.worker().view().assigned.requests, 1);
        member.report(WorkerLoad::default());
        assert_eq!(member.worker().view().assigned.requests, 0);
        let _third = member.worker().assign(5);
        drop(first);
        assert_eq!(member.worker().view().assigned.prompt_tokens, 5);
    }
}
