//! A worker's membership: it dials every router it knows, says who it is, and reports its load for as long as it lives.
//!
//! Routers keep soft state only, so a stream that ends is opened again and everything is said anew.

mod backoff;
mod session;

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use baton_engine::{EngineHandle, EngineLoad};
use baton_proto::v1::{WorkerHello, WorkerLoad};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::metrics::WorkerMetrics;
use session::Session;

/// What membership needs to know.
#[derive(Clone, Debug)]
pub struct MembershipConfig {
    /// Routers as `host:port`; a name stands for all of its addresses.
    pub routers: Vec<String>,
    pub resolve_every: Duration,
    /// An unchanged load is reported this often.
    pub report_max: Duration,
}

/// What a worker says to its routers, and where it hears from them.
#[derive(Clone)]
pub struct Member {
    pub hello: WorkerHello,
    pub load: watch::Receiver<WorkerLoad>,
    /// Becomes true when the worker takes nothing new.
    pub draining: watch::Receiver<bool>,
    /// Called when a router asks the worker to drain, with the time that running requests have.
    pub on_drain: Arc<dyn Fn(Duration) + Send + Sync>,
    pub metrics: WorkerMetrics,
}

/// Joins every router, until the handle is dropped.
pub fn join(config: MembershipConfig, member: Member) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(keep_joined(config, member)))
}

/// Follows an engine's load; looks every `interval`, and tells only what changed.
pub fn follow_load(
    engine: EngineHandle,
    interval: Duration,
) -> (watch::Receiver<WorkerLoad>, AbortOnDropHandle<()>) {
    let (sender, receiver) = watch::channel(report(&engine.load()));
    let task = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let load = report(&engine.load());
            sender.send_if_modified(|last| {
                let changed = *last != load;
                *last = load;
                changed
            });
        }
    });
    (receiver, AbortOnDropHandle::new(task))
}

/// Resolves the routers' names again and again, and keeps one session with each address found.
async fn keep_joined(config: MembershipConfig, member: Member) {
    let mut sessions: HashMap<SocketAddr, AbortOnDropHandle<()>> = HashMap::new();
    loop {
        let found = resolve(&config.routers).await;
        // A lookup that fails must not cost the sessions that stand.
        if !found.is_empty() {
            sessions.retain(|addr, _| found.contains(addr));
        }
        for addr in found {
            sessions.entry(addr).or_insert_with(|| {
                let session = Session::new(addr, member.clone(), config.report_max);
                AbortOnDropHandle::new(tokio::spawn(session.keep()))
            });
        }
        tokio::time::sleep(config.resolve_every).await;
    }
}

async fn resolve(routers: &[String]) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for router in routers {
        let host = router.split_once("://").map_or(router.as_str(), |(_, rest)| rest);
        match tokio::net::lookup_host(host).await {
            Ok(addrs) => found.extend(one_family(addrs.collect())),
            Err(error) => tracing::warn!(router, error = %error, "cannot resolve this router"),
        }
    }
    found
}

/// A router that has addresses of both families is one router, not two.
fn one_family(addrs: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (four, six): (Vec<_>, Vec<_>) = addrs.into_iter().partition(SocketAddr::is_ipv4);
    if four.is_empty() { six } else { four }
}

fn report(load: &EngineLoad) -> WorkerLoad {
    WorkerLoad {
        running: load.running,
        waiting: load.waiting,
        free_pages: load.pages.free,
        cached_pages: load.pages.cached,
        waiting_tokens: load.waiting_tokens,
        steps: load.steps,
        prefill_tokens_per_second: load.prefill_tokens_per_second,
        decode_step_seconds: load.decode_step_seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_stand_for_their_addresses_in_one_family() {
        let found = resolve(&["http://127.0.0.1:9".into(), "localhost:10".into()]).await;
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(SocketAddr::is_ipv4), "{found:?}");
    }
}
