//! `[engine]` of `baton.toml`: what one engine may hold and how it shares a step among requests.

use std::time::Duration;

use baton_kernels::kv::KvDtype;
use baton_proto::InvalidConfig;
use serde::{Deserialize, Serialize};

/// Sizes and policy of one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Tokens in a KV page: 16, 32, 64 or 128. Equal on all workers that hand KV to each other.
    pub page_tokens: usize,
    /// How keys and values are stored. Equal on all workers that hand KV to each other.
    pub kv_dtype: KvDtype,
    /// KV pages of this worker.
    pub kv_pages: u32,
    /// Longest sequence in tokens; 0 is the model's own limit.
    pub context_tokens: u32,
    /// Sequences that run together.
    pub max_running: u32,
    /// Requests that may wait for their turn; one more is refused.
    pub max_waiting: usize,
    /// Tokens that one step computes at most. Decode rows come first, prompt chunks share the rest.
    pub max_batch_tokens: u32,
    /// Prompts that run side by side, so that a short one does not stand behind a long one.
    pub max_prefills: usize,
    /// Seconds of waiting that weigh as much as one level of priority; bounds how long a low priority can starve.
    pub aging_seconds: f64,
    /// Share of the KV pages that hand-offs on their way in may occupy, above 0 and at most 1.
    pub inbound_share: f64,
    /// Events of one request that may lie unread; past that, tokens are coalesced.
    pub event_capacity: usize,
    /// Threads of the CPU executor; 0 is one per core.
    pub threads: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            page_tokens: 16,
            kv_dtype: KvDtype::Fp8E4m3,
            kv_pages: 4096,
            context_tokens: 0,
            max_running: 64,
            max_waiting: 512,
            max_batch_tokens: 512,
            max_prefills: 4,
            aging_seconds: 5.0,
            inbound_share: 0.5,
            event_capacity: 32,
            threads: 0,
        }
    }
}

impl EngineConfig {
    /// # Errors
    /// [`InvalidConfig`] naming the first value that cannot work.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let invalid = |field: &str, found: &dyn std::fmt::Display, expected: &str| {
            Err(InvalidConfig::new(format!("engine.{field}"), found, expected))
        };
        if ![16, 32, 64, 128].contains(&self.page_tokens) {
            return invalid("page_tokens", &self.page_tokens, "choose 16, 32, 64 or 128");
        }
        if self.kv_pages == 0 {
            return invalid("kv_pages", &self.kv_pages, "at least 1");
        }
        if self.max_running == 0 {
            return invalid("max_running", &self.max_running, "at least 1");
        }
        if self.max_waiting == 0 {
            return invalid("max_waiting", &self.max_waiting, "at least 1");
        }
        if self.max_batch_tokens < self.max_running {
            return invalid(
                "max_batch_tokens",
                &self.max_batch_tokens,
                "at least engine.max_running, so that every running sequence gets its token in each step",
            );
        }
        if self.max_prefills == 0 {
            return invalid("max_prefills", &self.max_prefills, "at least 1");
        }
        if !(self.aging_seconds > 0.0 && self.aging_seconds.is_finite()) {
            return invalid("aging_seconds", &self.aging_seconds, "above 0");
        }
        if !(self.inbound_share > 0.0 && self.inbound_share <= 1.0) {
            return invalid("inbound_share", &self.inbound_share, "above 0 and at most 1");
        }
        if self.event_capacity == 0 {
            return invalid("event_capacity", &self.event_capacity, "at least 1");
        }
        Ok(())
    }

    /// Waiting time worth one level of priority.
    #[must_use]
    pub fn aging(&self) -> Duration {
        Duration::from_secs_f64(self.aging_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_bad_values_are_named() {
        assert_eq!(EngineConfig::default().validate(), Ok(()));
        type Change = fn(&mut EngineConfig);
        let bad: [(&str, Change); 9] = [
            ("engine.page_tokens", |config| config.page_tokens = 20),
            ("engine.kv_pages", |config| config.kv_pages = 0),
            ("engine.max_running", |config| config.max_running = 0),
            ("engine.max_waiting", |config| config.max_waiting = 0),
            ("engine.max_batch_tokens", |config| config.max_batch_tokens = 8),
            ("engine.max_prefills", |config| config.max_prefills = 0),
            ("engine.aging_seconds", |config| config.aging_seconds = f64::NAN),
            ("engine.inbound_share", |config| config.inbound_share = 1.5),
            ("engine.event_capacity", |config| config.event_capacity = 0),
        ];
        for (field, change) in bad {
            let mut config = EngineConfig::default();
            change(&mut config);
            assert_eq!(config.validate().expect_err(field).field, field);
        }
    }
}
