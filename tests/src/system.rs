//! Router, prefill and decode workers in this process, on ports of their own.

use std::{path::Path, time::Duration};

use baton::{
    config::{BatonConfig, Override},
    up::OneProcess,
};
use baton_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

/// Who runs the prompt, and how its KV reaches who decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A decode worker prefills for itself.
    Aggregated,
    /// A prefill worker hands KV over sockets.
    Tcp,
    /// A prefill worker hands KV over in memory.
    Local,
}

/// What a test may choose.
#[derive(Clone, Debug)]
pub struct SystemOptions {
    pub topology: Topology,
    /// `fp8_e4m3`, `bf16` or `f32`.
    pub kv_dtype: &'static str,
    /// Prompts at least this long are prefilled remotely.
    pub remote_prefill_min_tokens: u32,
    /// More settings, as `baton.toml` would have them.
    pub toml: &'static str,
}

impl Default for SystemOptions {
    fn default() -> Self {
        Self {
            topology: Topology::Tcp,
            kv_dtype: "fp8_e4m3",
            remote_prefill_min_tokens: 1,
            toml: "",
        }
    }
}

/// A running system.
pub struct System {
    pub parts: OneProcess,
    pub inference: InferenceClient<Channel>,
    pub http: reqwest::Client,
}

impl System {
    /// Starts the system.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(options: &SystemOptions) -> Self {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/baton-tiny");
        let mut settings = BatonConfig::model_overrides(&model);
        settings.extend([
            Override::new("router.listen", "127.0.0.1:0"),
            Override::new("router.grpc_listen", "127.0.0.1:0"),
            Override::new(
                "router.policy.remote_prefill_min_tokens",
                options.remote_prefill_min_tokens,
            ),
            Override::new("engine.kv_dtype", options.kv_dtype),
            Override::new("engine.threads", 1),
            Override::new("up.aggregated", options.topology == Topology::Aggregated),
            Override::new(
                "transfer.transport",
                match options.topology {
                    Topology::Aggregated | Topology::Tcp => "tcp",
                    Topology::Local => "local",
                },
            ),
        ]);
        let config = BatonConfig::from_toml(options.toml, settings).expect("the test's settings are valid");
        let parts = OneProcess::start(config).await.expect("the system starts");
        let grpc = format!("http://{}", parts.router.grpc_addr);
        let inference = InferenceClient::connect(grpc)
            .await
            .expect("the router serves gRPC");
        Self {
            parts,
            inference,
            http: reqwest::Client::new(),
        }
    }

    /// URL of a path of the HTTP API.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.parts.router.http_addr)
    }

    /// Pages that a request, a step or a transfer holds, over all workers; the rest is free or cache.
    #[must_use]
    pub fn pages_in_use(&self) -> u32 {
        let workers = self.parts.decode.iter().chain(&self.parts.prefill);
        workers
            .map(|worker| worker.engine().load().pages)
            .map(|pages| pages.total - pages.free - pages.cached)
            .sum()
    }

    /// Waits until no page is in use.
    ///
    /// # Panics
    /// When that takes longer than `limit`.
    pub async fn until_pages_are_back(&self, limit: Duration) {
        let back = async {
            while self.pages_in_use() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = tokio::time::timeout(limit, back).await;
        assert!(
            in_time.is_ok(),
            "{} pages are still in use after {limit:?}",
            self.pages_in_use()
        );
    }
}
