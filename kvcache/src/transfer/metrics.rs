//! Metrics of KV transfers.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::TransferError;

/// Registered once for each process; clones share the values.
#[derive(Clone, Debug)]
pub struct TransferMetrics {
    bytes: IntCounterVec,
    slices: IntCounterVec,
    seconds: HistogramVec,
    aborts: IntCounterVec,
    live: IntGaugeVec,
    links: IntGaugeVec,
    stray_slices: IntCounter,
    refused_connections: IntCounter,
}

/// The values of one end.
#[derive(Clone, Debug)]
pub(crate) struct EndMetrics {
    direction: &'static str,
    pub(crate) bytes: IntCounter,
    pub(crate) slices: IntCounter,
    pub(crate) seconds: Histogram,
    pub(crate) live: IntGauge,
    pub(crate) links: IntGauge,
    aborts: IntCounterVec,
    pub(crate) stray_slices: IntCounter,
    pub(crate) refused_connections: IntCounter,
}

// === impl TransferMetrics ===

impl TransferMetrics {
    /// # Errors
    /// If the registry holds them already.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let direction = &["direction"];
        let metrics = Self {
            bytes: IntCounterVec::new(
                Opts::new("baton_kv_transfer_bytes_total", "KV bytes moved between workers"),
                direction,
            )?,
            slices: IntCounterVec::new(
                Opts::new(
                    "baton_kv_transfer_slices_total",
                    "KV slices (one page of one layer) moved between workers",
                ),
                direction,
            )?,
            seconds: HistogramVec::new(
                HistogramOpts::new(
                    "baton_kv_transfer_seconds",
                    "Time of a complete transfer: from lease to last slice (in), from grant to acknowledgement (out)",
                )
                .buckets(vec![
                    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
                ]),
                direction,
            )?,
            aborts: IntCounterVec::new(
                Opts::new("baton_kv_transfer_aborts_total", "Transfers that ended early, by kind of cause"),
                &["direction", "reason"],
            )?,
            live: IntGaugeVec::new(Opts::new("baton_kv_transfers_live", "Transfers that are open"), direction)?,
            links: IntGaugeVec::new(
                Opts::new("baton_kv_links_live", "Links to other workers that are open"),
                direction,
            )?,
            stray_slices: IntCounter::new(
                "baton_kv_stray_slices_total",
                "Slices received for a transfer that is not live, as after an abort, and dropped",
            )?,
            refused_connections: IntCounter::new(
                "baton_kv_refused_connections_total",
                "Links and data connections refused or closed because of what the peer sent",
            )?,
        };
        registry.register(Box::new(metrics.bytes.clone()))?;
        registry.register(Box::new(metrics.slices.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.aborts.clone()))?;
        registry.register(Box::new(metrics.live.clone()))?;
        registry.register(Box::new(metrics.links.clone()))?;
        registry.register(Box::new(metrics.stray_slices.clone()))?;
        registry.register(Box::new(metrics.refused_connections.clone()))?;
        Ok(metrics)
    }

    pub(crate) fn inbound(&self) -> EndMetrics {
        self.end("in")
    }

    pub(crate) fn outbound(&self) -> EndMetrics {
        self.end("out")
    }

    fn end(&self, direction: &'static str) -> EndMetrics {
        EndMetrics {
            direction,
            bytes: self.bytes.with_label_values(&[direction]),
            slices: self.slices.with_label_values(&[direction]),
            seconds: self.seconds.with_label_values(&[direction]),
            live: self.live.with_label_values(&[direction]),
            links: self.links.with_label_values(&[direction]),
            aborts: self.aborts.clone(),
            stray_slices: self.stray_slices.clone(),
            refused_connections: self.refused_connections.clone(),
        }
    }
}

// === impl EndMetrics ===

impl EndMetrics {
    pub(crate) fn moved(&self, bytes: usize) {
        self.bytes.inc_by(bytes as u64);
        self.slices.inc();
    }

    pub(crate) fn aborted(&self, cause: &TransferError) {
        self.aborts
            .with_label_values(&[self.direction, cause.kind()])
            .inc();
    }
}
