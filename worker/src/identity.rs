//! Who a worker is to routers and to other workers.

use std::net::SocketAddr;

use baton_proto::v1::{KvFingerprint, WorkerRole};

use crate::{WorkerConfig, random};

/// The model that a worker serves, and what its KV is compatible with.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// The name that requests ask for.
    pub name: String,
    pub fingerprint: KvFingerprint,
    /// `cpu`, or the GPU's name.
    pub device: String,
}

/// Identity of one start of one worker.
#[derive(Clone, Debug)]
pub struct Identity {
    pub worker_id: String,
    /// Differs for each start of the process.
    pub incarnation: u64,
    pub role: WorkerRole,
    /// `http://host:port` that others reach it by.
    pub url: String,
    pub model: ServedModel,
}

impl Identity {
    /// The identity of a worker that listens on `bound`.
    #[must_use]
    pub fn new(config: &WorkerConfig, role: WorkerRole, model: ServedModel, bound: SocketAddr) -> Self {
        let incarnation = random::bits64();
        let worker_id = if config.id.is_empty() {
            format!(
                "{}-{}-{:04x}",
                role_name(role),
                bound.port(),
                incarnation & 0xffff
            )
        } else {
            config.id.clone()
        };
        let url = if config.advertise_addr.is_empty() {
            format!("http://{bound}")
        } else {
            crate::channels::url(&config.advertise_addr)
        };
        Self {
            worker_id,
            incarnation,
            role,
            url,
            model,
        }
    }
}

/// The role's name in ids, logs and metrics.
#[must_use]
pub fn role_name(role: WorkerRole) -> &'static str {
    match role {
        WorkerRole::Unspecified => "worker",
        WorkerRole::Prefill => "prefill",
        WorkerRole::Decode => "decode",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_by_start_unless_configured() {
        let bound = SocketAddr::from(([127, 0, 0, 1], 4000));
        let model = ServedModel {
            name: "m".into(),
            fingerprint: KvFingerprint::default(),
            device: "cpu".into(),
        };
        let mut config = WorkerConfig::default();
        let first = Identity::new(&config, WorkerRole::Decode, model.clone(), bound);
        assert!(first.worker_id.starts_with("decode-4000-"), "{}", first.worker_id);
        assert_eq!(first.url, "http://127.0.0.1:4000");
        config.id = "d0".into();
        config.advertise_addr = "node7:9000".into();
        let second = Identity::new(&config, WorkerRole::Decode, model, bound);
        assert_eq!(
            (second.worker_id.as_str(), second.url.as_str()),
            ("d0", "http://node7:9000")
        );
        assert_ne!(first.incarnation, second.incarnation);
    }
}
