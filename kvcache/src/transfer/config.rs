//! Configuration of KV transfers.

use std::{net::SocketAddr, time::Duration};

use baton_proto::InvalidConfig;
use serde::{Deserialize, Serialize};

/// How KV moves between workers: section `[transfer]` of `baton.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransferConfig {
    /// Which transports may be used; `auto` takes `local` where both workers are one process, else `tcp`.
    pub transport: TransportChoice,
    /// Where a decode worker listens for KV over TCP, as `host:port`; port 0 takes any free one.
    pub data_listen: String,
    /// What prefill workers connect to, as `host:port`; port 0 stands for the port listened on. Empty: the address
    /// listened on, and where that is unspecified (0.0.0.0) the host under which the prefill worker reached the
    /// decode worker's gRPC port.
    pub data_advertise: String,
    /// A transfer that makes no progress for this long is aborted and its pages return.
    pub lease_timeout_ms: u64,
    /// Longest time to open a link, handshakes included.
    pub connect_timeout_ms: u64,
    /// HTTP/2 keep-alive of links: a ping after this long, and the link is lost if it is not answered as soon again.
    pub keepalive_ms: u64,
    /// Transfers in each direction that may be live at once; more are refused.
    pub max_transfers: usize,
    /// Links (peers) a decode worker accepts at once; more are refused.
    pub max_links: usize,
    /// Control messages that may wait on one link. A peer that lets it fill up loses the link.
    pub control_queue: usize,
    /// Bytes buffered at each end of a data connection.
    pub buffer_bytes: usize,
}

/// Which transports a worker offers or accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportChoice {
    #[default]
    Auto,
    Tcp,
    Local,
}

// === impl TransferConfig ===

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            transport: TransportChoice::Auto,
            data_listen: "127.0.0.1:0".to_owned(),
            data_advertise: String::new(),
            lease_timeout_ms: 10_000,
            connect_timeout_ms: 2_000,
            keepalive_ms: 2_000,
            max_transfers: 1024,
            max_links: 256,
            control_queue: 4096,
            buffer_bytes: 256 * 1024,
        }
    }
}

impl TransferConfig {
    /// # Errors
    /// [`InvalidConfig`] naming the first value that cannot work.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if self.data_listen.parse::<SocketAddr>().is_err() {
            return Err(InvalidConfig::new(
                "transfer.data_listen",
                &self.data_listen,
                "an IP address and port, as in 127.0.0.1:0",
            ));
        }
        if !self.data_advertise.is_empty() && split_host_port(&self.data_advertise).is_none() {
            return Err(InvalidConfig::new(
                "transfer.data_advertise",
                &self.data_advertise,
                "host:port, or empty",
            ));
        }
        let times = [
            ("transfer.lease_timeout_ms", self.lease_timeout_ms),
            ("transfer.connect_timeout_ms", self.connect_timeout_ms),
            ("transfer.keepalive_ms", self.keepalive_ms),
        ];
        for (field, value) in times {
            if !(10..=3_600_000).contains(&value) {
                return Err(InvalidConfig::new(
                    field,
                    value,
                    "choose 10 to 3600000 milliseconds",
                ));
            }
        }
        let counts = [
            ("transfer.max_transfers", self.max_transfers, 1, 1 << 20),
            ("transfer.max_links", self.max_links, 1, 1 << 16),
            ("transfer.control_queue", self.control_queue, 16, 1 << 20),
            ("transfer.buffer_bytes", self.buffer_bytes, 4096, 1 << 26),
        ];
        for (field, value, least, most) in counts {
            if !(least..=most).contains(&value) {
                return Err(InvalidConfig::new(
                    field,
                    value,
                    format!("choose {least} to {most}"),
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn lease_timeout(&self) -> Duration {
        Duration::from_millis(self.lease_timeout_ms)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn keepalive(&self) -> Duration {
        Duration::from_millis(self.keepalive_ms)
    }
}

/// `host:port`, where the host may be a name, an IPv4 address, or an IPv6 address in brackets.
pub(crate) fn split_host_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !bracketed) {
        return None;
    }
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_bad_values_are_named() {
        assert_eq!(TransferConfig::default().validate(), Ok(()));
        let bad = [
            (
                TransferConfig {
                    data_listen: "nowhere".into(),
                    ..Default::default()
                },
                "transfer.data_listen",
            ),
            (
                TransferConfig {
                    data_advertise: "host".into(),
                    ..Default::default()
                },
                "transfer.data_advertise",
            ),
            (
                TransferConfig {
                    lease_timeout_ms: 0,
                    ..Default::default()
                },
                "transfer.lease_timeout_ms",
            ),
            (
                TransferConfig {
                    control_queue: 0,
                    ..Default::default()
                },
                "transfer.control_queue",
            ),
        ];
        for (config, field) in bad {
            assert_eq!(config.validate().expect_err(field).field, field);
        }
    }

    #[test]
    fn hosts_and_ports_are_told_apart() {
        assert_eq!(split_host_port("worker-3:99"), Some(("worker-3", 99)));
        assert_eq!(split_host_port("[::1]:99"), Some(("[::1]", 99)));
        assert_eq!(split_host_port("::1"), None);
        assert_eq!(split_host_port("host:port"), None);
    }
}
