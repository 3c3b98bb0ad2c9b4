//! `baton_worker_*`: what the service in front of an engine counts.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

/// Latency buckets in seconds of everything that a worker times beside its engine.
pub const SECONDS: [f64; 15] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 8.0, 32.0,
];

/// Registered once per worker; clones share the values.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    /// Requests that are being served.
    pub open_requests: IntGauge,
    /// Requests refused or given up, by `kind` as in the error's detail.
    pub errors: IntCounterVec,
    /// Routers that this worker is registered with.
    pub routers: IntGauge,
    pub connections: IntGauge,
}

impl WorkerMetrics {
    /// # Errors
    /// When one of the names is registered already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(format!("baton_worker_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let errors = IntCounterVec::new(
            Opts::new(
                "baton_worker_errors_total",
                "Requests refused or given up, by kind.",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(errors.clone()))?;
        Ok(Self {
            open_requests: gauge("open_requests", "Requests that are being served.")?,
            errors,
            routers: gauge("routers", "Routers that this worker is registered with.")?,
            connections: gauge("connections", "Open connections to this worker's port.")?,
        })
    }
}
