//! The system in this one process: KV is handed over in memory, everything else is as with several.

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use baton_router::RunningRouter;
use baton_worker::RunningWorker;
use futures::future::{select_all, try_join_all};
use tokio::time::Instant;

use super::{Member, banner, until_ready};
use crate::{
    config::BatonConfig,
    roles::{Interrupts, load_model, start_decode_worker, start_prefill_worker, start_router},
};

const READY_LIMIT: Duration = Duration::from_secs(60);

/// A router and its workers in this process.
pub struct OneProcess {
    pub router: RunningRouter,
    pub prefill: Vec<RunningWorker>,
    pub decode: Vec<RunningWorker>,
    grace: Duration,
}

impl OneProcess {
    /// Starts all parts, and returns when the router can serve.
    ///
    /// # Errors
    /// When a part does not start.
    pub async fn start(mut config: BatonConfig) -> anyhow::Result<Self> {
        let router = start_router(&config).await?;
        let grpc_addr = router.grpc_addr.to_string();
        config.worker.routers = vec![grpc_addr.clone()];
        config.worker.listen.set_port(0);
        let model = load_model(&config.worker.model).await?;
        let named = |name: String| {
            let mut config = config.clone();
            config.worker.id = name;
            config
        };
        let prefill = (0..config.up.prefill_workers()).map(|n| {
            let (config, model) = (named(format!("prefill-worker-{n}")), Arc::clone(&model));
            async move { start_prefill_worker(&config, Some(model)).await }
        });
        let decode = (0..config.up.decode).map(|n| {
            let (config, model) = (named(format!("decode-worker-{n}")), Arc::clone(&model));
            async move { start_decode_worker(&config, Some(model)).await }
        });
        let (prefill, decode) = futures::try_join!(try_join_all(prefill), try_join_all(decode))?;
        until_ready(&grpc_addr, READY_LIMIT).await?;
        Ok(Self {
            router,
            prefill,
            decode,
            grace: config.worker.drain_grace(),
        })
    }

    fn workers(&self) -> impl Iterator<Item = &RunningWorker> {
        self.decode.iter().chain(&self.prefill)
    }

    /// Resolves when a worker cannot go on, with who and why.
    async fn failed(&self) -> String {
        let failures = self.workers().map(|worker| {
            Box::pin(async move { format!("{}: {}", worker.identity().worker_id, worker.failed().await) })
        });
        select_all(failures).await.0
    }

    /// Finishes what runs, and ends: the router first, so that nothing new arrives at the workers.
    pub async fn stop(self) {
        self.router.shutdown(self.grace).await;
        for worker in self.decode.into_iter().chain(self.prefill) {
            worker.shutdown(self.grace).await;
        }
    }
}

pub(super) async fn run(
    config: BatonConfig,
    begun: Instant,
    interrupts: &mut Interrupts,
) -> anyhow::Result<()> {
    let model = config.router.served_name();
    let system = tokio::select! {
        system = OneProcess::start(config) => system?,
        () = interrupts.next() => return Ok(()),
    };
    let pid = std::process::id();
    let router = Member {
        name: "router".into(),
        addr: system.router.http_addr.to_string(),
        pid,
    };
    let workers = system.workers().map(|worker| Member {
        name: worker.identity().worker_id.clone(),
        addr: worker.addr().to_string(),
        pid,
    });
    let members: Vec<Member> = std::iter::once(router).chain(workers).collect();
    println!("{}", banner::text(&model, &members, begun.elapsed()));
    tokio::select! {
        failure = system.failed() => bail!("{failure}"),
        () = interrupts.next() => {}
    }
    println!("draining; once more to stop at once");
    tokio::select! {
        () = system.stop() => {}
        () = interrupts.next() => {}
    }
    Ok(())
}
