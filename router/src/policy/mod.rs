//! Which workers serve a request: a pure function of what the registry knows.

mod cost;
mod plan;
mod view;

pub use cost::{Cost, CostTerm};
pub use plan::{Candidate, Plan, PlanRequest, PrefillPlace, plan};
pub use view::{Assigned, WorkerView};

use baton_proto::InvalidConfig;
use serde::{Deserialize, Serialize};

/// `[router.policy]` of `baton.toml`. Costs are sums of weight times term; each term is about 0 when idle and 1 when full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// A prompt is prefilled remotely when at least this many of its tokens are not in the decode worker's cache.
    pub remote_prefill_min_tokens: u32,
    /// A prefill worker whose queue holds at least this many prompt tokens is not asked.
    pub prefill_queue_tokens: u64,
    /// Weight of requests that wait on a decode worker, in batches of it.
    pub waiting_weight: f64,
    /// Weight of the share of a worker's batch that is in use.
    pub running_weight: f64,
    /// Weight of the share of a worker's pages that cannot be had.
    pub pages_weight: f64,
    /// Weight of a prefill worker's queue, in units of `prefill_queue_tokens`.
    pub queue_weight: f64,
    /// Costs that differ by less are near-equal, and told apart by a hash of the request's id.
    pub near: f64,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            remote_prefill_min_tokens: 256,
            prefill_queue_tokens: 16_384,
            waiting_weight: 4.0,
            running_weight: 1.0,
            pages_weight: 1.0,
            queue_weight: 4.0,
            near: 0.05,
        }
    }
}

impl PolicyConfig {
    /// # Errors
    /// [`InvalidConfig`] naming the first value that cannot work.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if self.prefill_queue_tokens == 0 {
            return Err(InvalidConfig::new(
                "router.policy.prefill_queue_tokens",
                0,
                "at least 1",
            ));
        }
        for (field, value, lowest) in [
            ("waiting_weight", self.waiting_weight, 0.0),
            ("running_weight", self.running_weight, 0.0),
            ("pages_weight", self.pages_weight, 0.0),
            ("queue_weight", self.queue_weight, 0.0),
            ("near", self.near, 0.001),
        ] {
            if !(lowest..=1000.0).contains(&value) {
                let expected = format!("{lowest} to 1000");
                return Err(InvalidConfig::new(
                    format!("router.policy.{field}"),
                    value,
                    expected,
                ));
            }
        }
        Ok(())
    }
}
