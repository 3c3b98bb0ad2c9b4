//! `Registry.Join`: a worker is known as long as its stream lives and reports.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_stream::stream;
use baton_proto::{
    PROTOCOL_VERSION,
    v1::{
        Directive, Welcome, WorkerReport, directive::Directive as Told,
        registry_server::Registry as RegistryContract, worker_report::Report,
    },
};
use futures::Stream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::registry::{JoinError, Registry};

#[derive(Clone, Debug)]
pub(crate) struct RegistryService {
    registry: Arc<Registry>,
    router_id: String,
    silence: Duration,
    shutdown: CancellationToken,
}

impl RegistryService {
    /// A worker that reports nothing for `silence` is taken for gone. `shutdown` ends all stays.
    pub(crate) fn new(
        registry: Arc<Registry>,
        router_id: String,
        silence: Duration,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            registry,
            router_id,
            silence,
            shutdown,
        }
    }

    /// The next report; one of a kind that only newer workers know has no content. `None` at the end of the stream.
    async fn report(&self, reports: &mut Streaming<WorkerReport>) -> Result<Option<WorkerReport>, Status> {
        match timeout(self.silence, reports.message()).await {
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no report within {:?}, which router.worker_silence_seconds allows",
                self.silence
            ))),
            Ok(report) => report,
        }
    }
}

#[tonic::async_trait]
impl RegistryContract for RegistryService {
    type JoinStream = Pin<Box<dyn Stream<Item = Result<Directive, Status>> + Send>>;

    async fn join(
        &self,
        request: Request<Streaming<WorkerReport>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        let mut reports = request.into_inner();
        let Some(Report::Hello(hello)) = self.report(&mut reports).await?.and_then(|first| first.report)
        else {
            return Err(Status::invalid_argument("a worker's first report is its hello"));
        };
        let worker_id = hello.worker_id.clone();
        let (role, addr) = (hello.role(), hello.addr.clone());
        let member = self.registry.join(hello).map_err(|error| {
            tracing::warn!(worker_id, "worker refused: {error}");
            Status::from(&error)
        })?;
        tracing::info!(worker_id, ?role, addr, "worker joined");
        let service = self.clone();
        let welcome = Directive {
            directive: Some(Told::Welcome(Welcome {
                router_id: self.router_id.clone(),
                protocol_version: PROTOCOL_VERSION,
            })),
        };
        let stay = stream! {
            yield Ok(welcome);
            let ended = loop {
                let report = tokio::select! {
                    biased;
                    () = service.shutdown.cancelled() => break Err(Status::unavailable("the router is shutting down")),
                    () = member.superseded() => break Err(Status::from(&JoinError::Superseded(worker_id.clone()))),
                    report = service.report(&mut reports) => report,
                };
                match report {
                    Ok(None) => break Ok(()),
                    Err(status) => break Err(status),
                    Ok(Some(report)) => match report.report {
                        None => {}
                        Some(Report::Load(load)) => member.report(load),
                        Some(Report::Leaving(leaving)) => {
                            tracing::info!(worker_id, reason = leaving.reason, "worker is leaving");
                            member.leave();
                        }
                        Some(Report::Hello(_)) => break Err(Status::invalid_argument("a worker says hello once")),
                    },
                }
            };
            drop(member);
            match ended {
                Ok(()) => tracing::info!(worker_id, "worker left"),
                Err(status) if service.shutdown.is_cancelled() => yield Err(status),
                Err(status) => {
                    tracing::warn!(worker_id, reason = status.message(), "worker is gone");
                    yield Err(status);
                }
            }
        };
        Ok(Response::new(Box::pin(stay)))
    }
}
