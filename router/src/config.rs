//! `[router]` of `baton.toml`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use baton_proto::InvalidConfig;
use serde::{Deserialize, Serialize};

use crate::policy::PolicyConfig;

/// What a router is told at start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterConfig {
    /// Where HTTP is served; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where gRPC is served, to clients and to workers that join; port 0 takes a free one.
    pub grpc_listen: SocketAddr,
    /// Directory of the model, in the Hugging Face layout; only its text files are read.
    pub model: PathBuf,
    /// Name that requests ask for; empty: the directory's.
    pub served_model_name: String,
    /// Prompts that may be in work together; one more is refused with 429.
    pub max_concurrent_requests: usize,
    /// Connections that may be open together on each port; more wait to be accepted.
    pub max_connections: usize,
    /// Longest request body accepted, in bytes.
    pub max_body_bytes: usize,
    /// Prompts that one request may hold.
    pub max_prompts: usize,
    /// Answers to one prompt that a request may ask for.
    pub max_choices: u32,
    /// Workers that may join.
    pub max_workers: usize,
    /// Time for a request that names none, from its arrival to its last token, in seconds.
    pub request_timeout_seconds: f64,
    /// Time for a request's body to arrive, in seconds.
    pub body_timeout_seconds: f64,
    /// A stream that has nothing to say sends a comment this often, in seconds.
    pub keep_alive_seconds: f64,
    /// Time to connect to a worker, in seconds.
    pub connect_timeout_seconds: f64,
    /// A worker that reports nothing for that long is taken for gone, in seconds.
    pub worker_silence_seconds: f64,
    /// Decode workers that one prompt is tried on before its request fails.
    pub max_attempts: usize,
    /// What `Retry-After` says when a request is refused for want of capacity, in seconds.
    pub retry_after_seconds: u64,
    /// Threads that encode prompts; 0: one per core.
    pub text_threads: usize,
    /// How workers are chosen.
    pub policy: PolicyConfig,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            grpc_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8001)),
            model: PathBuf::from("models/baton-tiny"),
            served_model_name: String::new(),
            max_concurrent_requests: 1024,
            max_connections: 4096,
            max_body_bytes: 2 << 20,
            max_prompts: 128,
            max_choices: 16,
            max_workers: 1024,
            request_timeout_seconds: 600.0,
            body_timeout_seconds: 30.0,
            keep_alive_seconds: 10.0,
            connect_timeout_seconds: 2.0,
            worker_silence_seconds: 10.0,
            max_attempts: 3,
            retry_after_seconds: 1,
            text_threads: 0,
            policy: PolicyConfig::default(),
        }
    }
}

impl RouterConfig {
    /// # Errors
    /// [`InvalidConfig`] naming the first value that cannot work.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let at_least_one = [
            ("max_concurrent_requests", self.max_concurrent_requests),
            ("max_connections", self.max_connections),
            ("max_prompts", self.max_prompts),
            ("max_choices", self.max_choices as usize),
            ("max_workers", self.max_workers),
            ("max_attempts", self.max_attempts),
        ];
        for (field, value) in at_least_one {
            if !(1..=1 << 20).contains(&value) {
                return Err(InvalidConfig::new(
                    format!("router.{field}"),
                    value,
                    "1 to 1048576",
                ));
            }
        }
        if !(1024..=1 << 30).contains(&self.max_body_bytes) {
            return Err(InvalidConfig::new(
                "router.max_body_bytes",
                self.max_body_bytes,
                "1024 to 1073741824",
            ));
        }
        if self.max_prompts > self.max_concurrent_requests {
            let expected = "at most router.max_concurrent_requests";
            return Err(InvalidConfig::new(
                "router.max_prompts",
                self.max_prompts,
                expected,
            ));
        }
        for (field, seconds) in [
            ("request_timeout_seconds", self.request_timeout_seconds),
            ("body_timeout_seconds", self.body_timeout_seconds),
            ("keep_alive_seconds", self.keep_alive_seconds),
            ("connect_timeout_seconds", self.connect_timeout_seconds),
            ("worker_silence_seconds", self.worker_silence_seconds),
        ] {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                return Err(InvalidConfig::new(
                    format!("router.{field}"),
                    seconds,
                    "above 0 and at most 86400",
                ));
            }
        }
        self.policy.validate()
    }

    /// The name that requests ask for.
    #[must_use]
    pub fn served_name(&self) -> String {
        if !self.served_model_name.is_empty() {
            return self.served_model_name.clone();
        }
        let name = self
            .model
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "model".to_owned())
    }

    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.request_timeout_seconds)
    }

    #[must_use]
    pub fn body_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.body_timeout_seconds)
    }

    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        Duration::from_secs_f64(self.keep_alive_seconds)
    }

    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.connect_timeout_seconds)
    }

    #[must_use]
    pub fn worker_silence(&self) -> Duration {
        Duration::from_secs_f64(self.worker_silence_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_bad_values_are_named() {
        assert_eq!(RouterConfig::default().validate(), Ok(()));
        type Change = fn(&mut RouterConfig);
        let bad: [(&str, Change); 7] = [
            ("router.max_choices", |c| c.max_choices = 0),
            ("router.max_attempts", |c| c.max_attempts = 0),
            ("router.max_body_bytes", |c| c.max_body_bytes = 10),
            ("router.max_prompts", |c| c.max_prompts = 5000),
            ("router.keep_alive_seconds", |c| c.keep_alive_seconds = f64::NAN),
            ("router.worker_silence_seconds", |c| {
                c.worker_silence_seconds = 0.0
            }),
            ("router.policy.near", |c| c.policy.near = -1.0),
        ];
        for (field, change) in bad {
            let mut config = RouterConfig::default();
            change(&mut config);
            assert_eq!(config.validate().expect_err(field).field, field);
        }
    }

    #[test]
    fn the_served_name_is_the_directory_unless_given() {
        let mut config = RouterConfig::default();
        assert_eq!(config.served_name(), "baton-tiny");
        config.served_model_name = "mine".into();
        assert_eq!(config.served_name(), "mine");
    }
}
