//! One supervised child process: started, announced, restarted, drained.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{oneshot, watch},
    time::{Instant, timeout},
};

/// A child that lives this long has recovered: its next death is restarted at once.
const STABLE: Duration = Duration::from_secs(5);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_millis(800);
const START_LIMIT: Duration = Duration::from_secs(60);

/// The one line that a supervised process writes to standard output, when it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announcement {
    /// Where HTTP (and for workers gRPC too) is served.
    pub addr: String,
    /// Where a router serves gRPC.
    pub grpc_addr: Option<String>,
}

/// What to run.
#[derive(Clone, Debug)]
pub(super) struct ChildSpec {
    pub(super) name: String,
    /// Arguments of this same program.
    pub(super) args: Vec<String>,
    /// Environment that hands the configuration down.
    pub(super) env: Vec<(&'static str, String)>,
    /// Arguments for a restart, from the first announcement: a router must come back where its workers look for it.
    pub(super) pin: fn(&Announcement) -> Vec<String>,
    /// How long it may take to drain.
    pub(super) grace: Duration,
}

/// A child under supervision. Dropping it kills the process.
pub(super) struct Supervised {
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) announcement: Announcement,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Supervised {
    /// Starts the process and waits until it serves.
    ///
    /// # Errors
    /// When it cannot be started, or ends before it serves: its own message is on standard error.
    pub(super) async fn start(mut spec: ChildSpec) -> anyhow::Result<Self> {
        let mut running = Running::spawn(&spec)?;
        let announcement = running.announced(&spec.name).await?;
        spec.args.extend((spec.pin)(&announcement));
        let (stop, stopping) = watch::channel(false);
        let (name, pid) = (spec.name.clone(), running.pid);
        let task = tokio::spawn(supervise(spec, running, stopping));
        Ok(Self {
            name,
            pid,
            announcement,
            stop,
            task,
        })
    }

    /// Drains the process, and kills it if that takes longer than its grace period.
    pub(super) async fn stop(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(child = self.name, %error, "supervision ended badly");
        }
    }
}

/// A live process. Its standard input stays open for as long as it is wanted: end of file asks it to drain, and comes by
/// itself if this process dies, so that no child is ever left behind.
struct Running {
    process: Child,
    wanted: Option<ChildStdin>,
    announcement: oneshot::Receiver<Announcement>,
    pid: u32,
    since: Instant,
}

impl Running {
    fn spawn(spec: &ChildSpec) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut process = Command::new(&program)
            .args(&spec.args)
            .arg("--supervised")
            .envs(spec.env.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C on the terminal is for the parent, which then drains its children in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {} as {}", spec.name, program.display()))?;
        let wanted = process.stdin.take();
        let stdout = process
            .stdout
            .take()
            .context("the child has no standard output")?;
        let (announce, announcement) = oneshot::channel();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            let mut announce = Some(announce);
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(found) => {
                        if let Some(announce) = announce.take() {
                            // Nobody waits any more only while shutting down.
                            let _ = announce.send(found);
                        }
                    }
                    Err(_) => eprintln!("{line}"),
                }
            }
        });
        let pid = process.id().context("the child ended at once")?;
        Ok(Self {
            process,
            wanted,
            announcement,
            pid,
            since: Instant::now(),
        })
    }

    async fn announced(&mut self, name: &str) -> anyhow::Result<Announcement> {
        tokio::select! {
            found = timeout(START_LIMIT, &mut self.announcement) => match found {
                Ok(Ok(announcement)) => Ok(announcement),
                Ok(Err(_)) => bail!("{name} ended before it served ({})", describe(self.process.wait().await)),
                Err(_) => bail!("{name} did not serve within {} s", START_LIMIT.as_secs()),
            },
            status = self.process.wait() => bail!("{name} ended before it served ({})", describe(status)),
        }
    }

    async fn drain(mut self, name: &str, grace: Duration) {
        drop(self.wanted.take());
        if timeout(grace, self.process.wait()).await.is_err() {
            tracing::warn!(
                child = name,
                "still running after {} s of grace: killed",
                grace.as_secs()
            );
            if let Err(error) = self.process.kill().await {
                tracing::error!(child = name, %error, "cannot kill");
            }
        }
    }
}

async fn supervise(spec: ChildSpec, mut running: Running, mut stopping: watch::Receiver<bool>) {
    let mut backoff = Duration::ZERO;
    loop {
        let status = tokio::select! {
            () = told(&mut stopping) => return running.drain(&spec.name, spec.grace).await,
            status = running.process.wait() => status,
        };
        backoff = if running.since.elapsed() >= STABLE {
            Duration::ZERO
        } else {
            (backoff * 2).clamp(FIRST_BACKOFF, LONGEST_BACKOFF)
        };
        let reason = describe(status);
        tracing::error!(
            child = spec.name,
            pid = running.pid,
            reason,
            "died; restarting in {backoff:?}"
        );
        tokio::select! {
            () = told(&mut stopping) => return,
            () = tokio::time::sleep(backoff) => {}
        }
        match restart(&spec, &mut stopping).await {
            Some(restarted) => running = restarted,
            None => return,
        }
    }
}

/// Tries until the process serves; `None` when told to stop meanwhile.
async fn restart(spec: &ChildSpec, stopping: &mut watch::Receiver<bool>) -> Option<Running> {
    loop {
        let attempt = async {
            let mut running = Running::spawn(spec)?;
            running.announced(&spec.name).await?;
            anyhow::Ok(running)
        };
        let attempt = tokio::select! {
            () = told(stopping) => return None,
            attempt = attempt => attempt,
        };
        match attempt {
            Ok(running) => {
                tracing::info!(child = spec.name, pid = running.pid, "serves again");
                return Some(running);
            }
            Err(error) => {
                tracing::error!(child = spec.name, "restart failed: {error:#}");
                tokio::time::sleep(LONGEST_BACKOFF).await;
            }
        }
    }
}

/// Resolves when supervision is to end.
async fn told(stopping: &mut watch::Receiver<bool>) {
    // The sender lives in `Supervised`: its end means the same.
    let _ = stopping.wait_for(|stop| *stop).await.map(|_| ());
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}
