//! `[worker]` of `baton.toml`: where a worker listens, whom it joins, how much it takes on.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use baton_proto::InvalidConfig;
use serde::{Deserialize, Serialize};

/// What both roles are told at start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerConfig {
    /// Name among the fleet's workers; empty: made from role, port and a random part.
    pub id: String,
    /// Where gRPC and HTTP are served; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` that other processes reach this worker by; empty: the address it listens on.
    pub advertise_addr: String,
    /// Routers' gRPC ports as `host:port`. A name stands for all of its addresses, and each is dialled.
    pub routers: Vec<String>,
    /// How often the routers' names are looked up again, in seconds.
    pub resolve_seconds: f64,
    /// Directory of the model, in the Hugging Face layout.
    pub model: PathBuf,
    /// Name that requests ask for; empty: the directory's.
    pub model_name: String,
    /// Requests that may be open together; one more is refused.
    pub max_requests: u32,
    /// Answers that one request may ask for.
    pub max_choices: u32,
    /// Connections that may be open together; more wait to be accepted.
    pub max_connections: usize,
    /// Longest gRPC message accepted, in bytes.
    pub max_message_bytes: usize,
    /// A changed load is reported no more often than this, in seconds.
    pub report_min_seconds: f64,
    /// An unchanged load is reported this often, in seconds.
    pub report_max_seconds: f64,
    /// Work without an engine step for that long means that the worker hangs, in seconds.
    pub stall_seconds: f64,
    /// Time that running requests get to finish when the worker is told to stop, in seconds.
    pub drain_grace_seconds: f64,
    /// Key of the prefix cache's block names, 32 hexadecimal digits and equal on all workers of a fleet; empty: random.
    pub block_key: String,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            id: String::new(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise_addr: String::new(),
            routers: Vec::new(),
            resolve_seconds: 5.0,
            model: PathBuf::from("models/baton-tiny"),
            model_name: String::new(),
            max_requests: 1024,
            max_choices: 128,
            max_connections: 1024,
            max_message_bytes: 16 << 20,
            report_min_seconds: 0.02,
            report_max_seconds: 0.5,
            stall_seconds: 30.0,
            drain_grace_seconds: 30.0,
            block_key: String::new(),
        }
    }
}

impl WorkerConfig {
    /// # Errors
    /// [`InvalidConfig`] naming the first value that cannot work.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let invalid = |field: &str, found: &dyn std::fmt::Display, expected: &str| {
            Err(InvalidConfig::new(format!("worker.{field}"), found, expected))
        };
        if self.advertise_addr.is_empty() && self.listen.ip().is_unspecified() {
            return invalid(
                "advertise_addr",
                &"empty",
                "host:port that other processes can reach, because worker.listen is every interface",
            );
        }
        if self.max_requests == 0 {
            return invalid("max_requests", &self.max_requests, "at least 1");
        }
        if self.max_choices == 0 {
            return invalid("max_choices", &self.max_choices, "at least 1");
        }
        if self.max_connections == 0 {
            return invalid("max_connections", &self.max_connections, "at least 1");
        }
        if self.max_message_bytes < 1 << 16 {
            return invalid("max_message_bytes", &self.max_message_bytes, "at least 65536");
        }
        for (field, seconds) in [
            ("resolve_seconds", self.resolve_seconds),
            ("report_min_seconds", self.report_min_seconds),
            ("report_max_seconds", self.report_max_seconds),
            ("stall_seconds", self.stall_seconds),
        ] {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                return invalid(field, &seconds, "above 0 and at most 86400");
            }
        }
        if self.report_min_seconds > self.report_max_seconds {
            return invalid(
                "report_min_seconds",
                &self.report_min_seconds,
                "at most worker.report_max_seconds",
            );
        }
        if !(0.0..=86_400.0).contains(&self.drain_grace_seconds) {
            return invalid("drain_grace_seconds", &self.drain_grace_seconds, "0 to 86400");
        }
        if !self.block_key.is_empty() && parse_key(&self.block_key).is_none() {
            return invalid(
                "block_key",
                &"a value that is not shown",
                "32 hexadecimal digits, or empty",
            );
        }
        Ok(())
    }

    /// Time for running requests to finish.
    #[must_use]
    pub fn drain_grace(&self) -> Duration {
        Duration::from_secs_f64(self.drain_grace_seconds)
    }

    /// The fleet's key, where one is set.
    #[must_use]
    pub fn block_key(&self) -> Option<[u8; 16]> {
        parse_key(&self.block_key)
    }

    /// The name that requests ask for.
    #[must_use]
    pub fn served_name(&self) -> String {
        if !self.model_name.is_empty() {
            return self.model_name.clone();
        }
        self.model
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

fn parse_key(hex: &str) -> Option<[u8; 16]> {
    let digits = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let key = digits.then(|| u128::from_str_radix(hex, 16).ok())??;
    Some(key.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_bad_values_are_named() {
        assert_eq!(WorkerConfig::default().validate(), Ok(()));
        type Change = fn(&mut WorkerConfig);
        let bad: [(&str, Change); 8] = [
            ("worker.advertise_addr", |c| {
                c.listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
            }),
            ("worker.max_requests", |c| c.max_requests = 0),
            ("worker.max_choices", |c| c.max_choices = 0),
            ("worker.max_connections", |c| c.max_connections = 0),
            ("worker.max_message_bytes", |c| c.max_message_bytes = 1),
            ("worker.stall_seconds", |c| c.stall_seconds = 0.0),
            ("worker.report_min_seconds", |c| c.report_min_seconds = 1.0),
            ("worker.block_key", |c| c.block_key = "abc".into()),
        ];
        for (field, change) in bad {
            let mut config = WorkerConfig::default();
            change(&mut config);
            assert_eq!(config.validate().expect_err(field).field, field);
        }
    }

    #[test]
    fn the_served_name_is_the_directory_unless_given() {
        let mut config = WorkerConfig::default();
        assert_eq!(config.served_name(), "baton-tiny");
        config.model_name = "other".into();
        assert_eq!(config.served_name(), "other");
        config.block_key = "000102030405060708090a0b0c0d0e0f".into();
        assert_eq!(config.block_key().map(|key| key[15]), Some(15));
    }
}
