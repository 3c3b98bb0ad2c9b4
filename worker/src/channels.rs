//! gRPC connections to other processes: how they are opened, and one per address.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint, Error};

/// How a connection to a peer behaves.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPolicy {
    pub connect_timeout: Duration,
    /// A peer that is silent for this long is asked whether it is there.
    pub keep_alive: Duration,
    /// And has this long to answer.
    pub keep_alive_timeout: Duration,
}

impl Default for ConnectionPolicy {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            keep_alive: Duration::from_secs(2),
            keep_alive_timeout: Duration::from_secs(3),
        }
    }
}

/// One lazily opened connection per address, shared by all calls to it. A lost one is opened again by the next call.
#[derive(Debug)]
pub struct ChannelPool {
    policy: ConnectionPolicy,
    capacity: usize,
    channels: Mutex<HashMap<String, Channel>>,
}

impl ChannelPool {
    /// Keeps at most `capacity` connections.
    #[must_use]
    pub fn new(policy: ConnectionPolicy, capacity: usize) -> Self {
        Self {
            policy,
            capacity: capacity.max(1),
            channels: Mutex::new(HashMap::new()),
        }
    }

    /// The connection to `addr`, as `host:port` or `http://host:port`.
    ///
    /// # Errors
    /// When `addr` is not an address.
    pub fn get(&self, addr: &str) -> Result<Channel, Error> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(addr) {
            return Ok(channel.clone());
        }
        let channel = endpoint(addr, &self.policy)?.connect_lazy();
        if channels.len() >= self.capacity {
            // Calls in progress hold clones; the next call to the evicted address dials anew.
            let evicted = channels.keys().next().cloned();
            evicted.map(|addr| channels.remove(&addr));
        }
        channels.insert(addr.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// How to reach `addr`: small messages at once, and a dead peer noticed.
///
/// # Errors
/// When `addr` is not an address.
pub fn endpoint(addr: &str, policy: &ConnectionPolicy) -> Result<Endpoint, Error> {
    Ok(Endpoint::from_shared(url(addr))?
        .tcp_nodelay(true)
        .connect_timeout(policy.connect_timeout)
        .http2_keep_alive_interval(policy.keep_alive)
        .keep_alive_timeout(policy.keep_alive_timeout)
        .keep_alive_while_idle(true))
}

/// `addr` with a scheme.
#[must_use]
pub fn url(addr: &str) -> String {
    if addr.contains("://") {
        addr.to_owned()
    } else {
        format!("http://{addr}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_pool_is_bounded_and_refuses_what_is_no_address() {
        let pool = ChannelPool::new(ConnectionPolicy::default(), 2);
        for port in 1..=5 {
            pool.get(&format!("127.0.0.1:{port}")).expect("an address");
        }
        assert_eq!(pool.channels.lock().len(), 2);
        assert!(pool.get("not an address").is_err());
    }
}
