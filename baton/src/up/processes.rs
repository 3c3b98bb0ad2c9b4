//! The system as one process for each part.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Member, banner,
    child::{Announcement, ChildSpec, Supervised},
    until_ready,
};
use crate::{config::BatonConfig, roles::Interrupts};

/// On top of the grace that a part gives its own requests, before it is killed.
const KILL_MARGIN: Duration = Duration::from_secs(2);
const READY_LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn run(
    config: BatonConfig,
    begun: Instant,
    interrupts: &mut Interrupts,
) -> anyhow::Result<()> {
    let started = tokio::select! {
        started = start(&config) => started?,
        // Children of a start that is given up are killed as they are dropped.
        () = interrupts.next() => return Ok(()),
    };
    println!(
        "{}",
        banner::text(&config.router.served_name(), &started.members(), begun.elapsed())
    );
    interrupts.next().await;
    println!("draining; once more to stop at once");
    tokio::select! {
        () = started.stop() => {}
        () = interrupts.next() => {}
    }
    Ok(())
}

/// Parts in the order in which they start, and drain: the router first, so that nothing new arrives at the workers.
struct Started {
    parts: Vec<Supervised>,
}

async fn start(config: &BatonConfig) -> anyhow::Result<Started> {
    let spec = |name: String, role: &str, args: Vec<String>, pin| ChildSpec {
        name,
        args: std::iter::once(role.to_owned()).chain(args).collect(),
        env: vec![(crate::config::INLINE_ENV, config.to_toml())],
        pin,
        grace: config.worker.drain_grace() + KILL_MARGIN,
    };
    let router = Supervised::start(spec("router".into(), "router", Vec::new(), pin_router)).await?;
    let grpc_addr = router.announcement.grpc_addr.clone().unwrap_or_default();
    let worker = |name: String, role: &str| {
        let args = ["--router", &grpc_addr, "--id", &name, "--listen", "127.0.0.1:0"];
        Supervised::start(spec(name.clone(), role, args.map(str::to_owned).to_vec(), |_| {
            Vec::new()
        }))
    };
    let prefill =
        (0..config.up.prefill_workers()).map(|n| worker(format!("prefill-worker-{n}"), "prefill-worker"));
    let decode = (0..config.up.decode).map(|n| worker(format!("decode-worker-{n}"), "decode-worker"));
    let (prefill, decode) = futures::try_join!(
        futures::future::try_join_all(prefill),
        futures::future::try_join_all(decode)
    )?;
    until_ready(&grpc_addr, READY_LIMIT).await?;
    Ok(Started {
        parts: std::iter::once(router).chain(decode).chain(prefill).collect(),
    })
}

/// A restarted router must be where its clients and workers look for it.
fn pin_router(first: &Announcement) -> Vec<String> {
    let grpc = first.grpc_addr.clone().unwrap_or_default();
    vec![
        "--listen".into(),
        first.addr.clone(),
        "--grpc-listen".into(),
        grpc,
    ]
}

impl Started {
    fn members(&self) -> Vec<Member> {
        let member = |part: &Supervised| Member {
            name: part.name.clone(),
            addr: part.announcement.addr.clone(),
            pid: part.pid,
        };
        self.parts.iter().map(member).collect()
    }

    async fn stop(self) {
        for part in self.parts {
            part.stop().await;
        }
    }
}
