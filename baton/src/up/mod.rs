//! `baton up`: the whole system on this machine, as child processes or in this one.

mod banner;
mod child;
mod one_process;
mod processes;

pub use child::Announcement;
pub use one_process::OneProcess;

use std::time::Duration;

use anyhow::{Context as _, bail};
use baton_proto::InvalidConfig;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tonic::transport::Endpoint;

use crate::{config::BatonConfig, roles::Interrupts};

/// How many of what `baton up` starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpConfig {
    /// Prefill workers.
    pub prefill: usize,
    /// Decode workers.
    pub decode: usize,
    /// No prefill workers: decode workers run their own prompts.
    pub aggregated: bool,
    /// Router and workers in this one process, KV handed over in memory. Set by `--transport local`.
    pub one_process: bool,
}

impl Default for UpConfig {
    fn default() -> Self {
        Self {
            prefill: 1,
            decode: 1,
            aggregated: false,
            one_process: false,
        }
    }
}

impl UpConfig {
    /// # Errors
    /// [`InvalidConfig`] naming the field.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if !(1..=64).contains(&self.decode) {
            return Err(InvalidConfig::new(
                "up.decode",
                self.decode,
                "choose 1 to 64 decode workers",
            ));
        }
        if self.prefill > 64 {
            return Err(InvalidConfig::new(
                "up.prefill",
                self.prefill,
                "choose 0 to 64 prefill workers",
            ));
        }
        Ok(())
    }

    /// Prefill workers that really start.
    #[must_use]
    pub fn prefill_workers(&self) -> usize {
        if self.aggregated { 0 } else { self.prefill }
    }

    /// Compute threads for each of the workers, so that together they do not ask for more than the machine has.
    #[must_use]
    pub fn threads_per_worker(&self, cores: usize) -> usize {
        (cores / (self.prefill_workers() + self.decode)).max(1)
    }
}

/// Who serves where.
pub struct Member {
    pub name: String,
    pub addr: String,
    pub pid: u32,
}

/// Starts everything, prints where it is, and drains it when interrupted.
///
/// # Errors
/// When a part does not start.
pub async fn run(mut config: BatonConfig) -> anyhow::Result<()> {
    let begun = Instant::now();
    if config.engine.threads == 0 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        config.engine.threads = config.up.threads_per_worker(cores);
    }
    let mut interrupts = Interrupts::listen()?;
    if config.up.one_process {
        one_process::run(config, begun, &mut interrupts).await
    } else {
        processes::run(config, begun, &mut interrupts).await
    }
}

/// Waits until the router at `grpc_addr` says that it can serve.
async fn until_ready(grpc_addr: &str, limit: Duration) -> anyhow::Result<()> {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };

    let deadline = Instant::now() + limit;
    let router = Endpoint::from_shared(format!("http://{grpc_addr}"))?
        .connect()
        .await;
    let mut client =
        HealthClient::new(router.with_context(|| format!("cannot reach the router at {grpc_addr}"))?);
    loop {
        let answer = client
            .check(HealthCheckRequest::default())
            .await
            .context("the router's health check failed")?;
        if answer.into_inner().status() == ServingStatus::Serving {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "no decode worker joined the router within {} s: see the messages above",
                limit.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
