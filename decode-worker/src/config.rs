//! `[decode]` of `baton.toml`: how a decode worker deals with prefill workers.

use std::time::Duration;

use baton_proto::InvalidConfig;
use serde::{Deserialize, Serialize};

/// Patience and limits of hand-offs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeConfig {
    /// Prefill workers that are tried for one request before this worker runs the prompt itself; 0: never ask any.
    pub max_handoffs: usize,
    /// Longest time to connect to a prefill worker, in seconds.
    pub connect_seconds: f64,
    /// Longest wait for a prefill worker to begin with a prompt that it has queued, in seconds.
    pub start_seconds: f64,
    /// Connections to prefill workers that are kept open.
    pub max_peers: usize,
}

impl Default for DecodeConfig {
    fn default() -> Self {
        Self {
            max_handoffs: 2,
            connect_seconds: 0.5,
            start_seconds: 10.0,
            max_peers: 256,
        }
    }
}

impl DecodeConfig {
    /// # Errors
    /// [`InvalidConfig`] naming the first value that cannot work.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        for (field, seconds) in [
            ("decode.connect_seconds", self.connect_seconds),
            ("decode.start_seconds", self.start_seconds),
        ] {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                return Err(InvalidConfig::new(field, seconds, "above 0 and at most 86400"));
            }
        }
        if self.max_peers == 0 {
            return Err(InvalidConfig::new(
                "decode.max_peers",
                self.max_peers,
                "at least 1",
            ));
        }
        Ok(())
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.connect_seconds)
    }

    pub(crate) fn start_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.start_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_bad_values_are_named() {
        assert_eq!(DecodeConfig::default().validate(), Ok(()));
        type Change = fn(&mut DecodeConfig);
        let bad: [(&str, Change); 3] = [
            ("decode.connect_seconds", |config| config.connect_seconds = 0.0),
            ("decode.start_seconds", |config| config.start_seconds = f64::NAN),
            ("decode.max_peers", |config| config.max_peers = 0),
        ];
        for (field, change) in bad {
            let mut config = DecodeConfig::default();
            change(&mut config);
            assert_eq!(config.validate().expect_err(field).field, field);
        }
    }
}
