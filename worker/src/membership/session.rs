//! The stream to one router.

use std::{net::SocketAddr, time::Duration};

use baton_proto::v1::{
    WorkerLeaving, WorkerReport, directive, registry_client::RegistryClient, worker_report::Report,
};
use prometheus::IntGauge;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{Member, backoff::Backoff};
use crate::{
    channels::{ConnectionPolicy, endpoint},
    random,
};

/// Reports that may lie unsent. Loads are skipped when it is full: a later one says more.
const QUEUED_REPORTS: usize = 4;

/// Keeps one router informed.
pub(super) struct Session {
    router: SocketAddr,
    member: Member,
    report_max: Duration,
}

/// Why a stream to a router ended.
#[derive(Debug)]
enum Ended {
    /// The router closed it, as one does that shuts down.
    Closed,
    Failed(Status),
}

/// Counts a router as joined for as long as it lives.
struct Joined(IntGauge);

impl Session {
    pub(super) fn new(router: SocketAddr, member: Member, report_max: Duration) -> Self {
        Self {
            router,
            member,
            report_max,
        }
    }

    /// Joins, and joins again whenever the stream ends.
    pub(super) async fn keep(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let mut welcomed = false;
            let ended = self.join(&mut welcomed).await;
            if welcomed {
                backoff.succeeded();
            }
            self.explain(&ended, backoff.is_first());
            tokio::time::sleep(backoff.failed(random::bits64())).await;
        }
    }

    async fn join(&mut self, welcomed: &mut bool) -> Ended {
        match self.try_join(welcomed).await {
            Ok(()) => Ended::Closed,
            Err(status) => Ended::Failed(status),
        }
    }

    async fn try_join(&mut self, welcomed: &mut bool) -> Result<(), Status> {
        let channel = endpoint(&self.router.to_string(), &ConnectionPolicy::default())
            .map_err(|error| Status::internal(error.to_string()))?
            .connect()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let (up, reports) = mpsc::channel(QUEUED_REPORTS);
        send(&up, Report::Hello(self.member.hello.clone()));
        send(&up, Report::Load(*self.member.load.borrow_and_update()));
        let directives = RegistryClient::new(channel)
            .join(ReceiverStream::new(reports))
            .await?
            .into_inner();
        self.run(up, directives, welcomed).await
    }

    async fn run(
        &mut self,
        up: mpsc::Sender<WorkerReport>,
        mut directives: Streaming<baton_proto::v1::Directive>,
        welcomed: &mut bool,
    ) -> Result<(), Status> {
        let mut joined = None;
        let mut leaving = false;
        let mut reported = Instant::now();
        loop {
            let draining = *self.member.draining.borrow_and_update();
            if draining && !leaving {
                let reason = "draining".to_owned();
                // Unlike a load this must arrive, so it waits for room.
                let report = WorkerReport {
                    report: Some(Report::Leaving(WorkerLeaving { reason })),
                };
                leaving = up.send(report).await.is_ok();
            }
            tokio::select! {
                directive = directives.message() => match directive? {
                    None => return Ok(()),
                    Some(directive) => match directive.directive {
                        Some(directive::Directive::Welcome(welcome)) => {
                            tracing::info!(router = %self.router, router_id = welcome.router_id, "joined router");
                            *welcomed = true;
                            joined.get_or_insert_with(|| Joined::count(&self.member.metrics.routers));
                        }
                        Some(directive::Directive::Drain(drain)) => {
                            let grace = Duration::try_from_secs_f64(drain.grace_seconds).unwrap_or_default();
                            tracing::info!(router = %self.router, ?grace, "router asks to drain");
                            (self.member.on_drain)(grace);
                        }
                        // A directive of a newer version.
                        None => {}
                    },
                },
                Ok(()) = self.member.load.changed() => {
                    send(&up, Report::Load(*self.member.load.borrow_and_update()));
                    reported = Instant::now();
                }
                () = tokio::time::sleep_until(reported + self.report_max) => {
                    send(&up, Report::Load(*self.member.load.borrow_and_update()));
                    reported = Instant::now();
                }
                Ok(()) = self.member.draining.changed(), if !leaving => {}
            }
        }
    }

    fn explain(&self, ended: &Ended, first: bool) {
        let router = self.router;
        match ended {
            Ended::Closed => tracing::info!(%router, "router closed the registration; joining again"),
            Ended::Failed(status) if status.code() == Code::FailedPrecondition => {
                tracing::error!(%router, reason = status.message(), "router refuses this worker");
            }
            // The first failure is news; that it goes on is not.
            Ended::Failed(status) if first => {
                tracing::warn!(%router, reason = status.message(), "no registration with router; trying again");
            }
            Ended::Failed(status) => {
                tracing::debug!(%router, reason = status.message(), "still no registration with router");
            }
        }
    }
}

impl Joined {
    fn count(routers: &IntGauge) -> Self {
        routers.inc();
        Self(routers.clone())
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn send(up: &mpsc::Sender<WorkerReport>, report: Report) {
    // Full: a slow router gets the next one. Closed: the stream's end is noticed where directives are read.
    let _ = up.try_send(WorkerReport { report: Some(report) });
}
