//! `Prefill.Run`: from the message to a [`Run`].

use std::{pin::Pin, sync::Arc};

use baton_engine::request::{KvSink, Work};
use baton_kvcache::{
    PagePin,
    transfer::{Outbound, OutboundSink},
};
use baton_proto::{
    TransferId,
    v1::{PrefillEvent, PrefillRequest, prefill_server::Prefill},
};
use baton_worker::{
    Intake, ServeError,
    request::{InvalidField, RequestFields},
    trace,
};
use futures::Stream;
use tonic::{Request, Response, Status};

use crate::{metrics::PrefillMetrics, run::Run};

pub(crate) struct PrefillService {
    intake: Intake,
    outbound: Arc<Outbound>,
    page_tokens: usize,
    metrics: PrefillMetrics,
}

/// The engine's side of an outbound transfer.
struct TransferSink(Arc<OutboundSink>);

impl PrefillService {
    pub(crate) fn new(
        intake: Intake,
        outbound: Arc<Outbound>,
        page_tokens: usize,
        metrics: PrefillMetrics,
    ) -> Self {
        Self {
            intake,
            outbound,
            page_tokens,
            metrics,
        }
    }

    fn open(&self, mut request: PrefillRequest) -> Result<Run, ServeError> {
        let transfer = TransferId::try_from(request.transfer_id.as_slice())
            .map_err(|error| invalid("transfer_id", error.to_string()))?;
        let target = request
            .target
            .take()
            .ok_or_else(|| invalid("target", "the receiving worker is needed"))?;
        let held_pages = request.held_pages;
        let admitted = self.intake.admit(RequestFields::from(request))?;
        if !admitted.one_prompt() {
            return Err(invalid(
                "choices",
                "several choices that have emitted tokens have no common prompt",
            )
            .into());
        }
        let end_page = admitted.tokens_before_sample().div_ceil(self.page_tokens) as u32;
        if held_pages >= end_page {
            return Err(invalid(
                "held_pages",
                format!("{held_pages} leaves nothing of the prompt's {end_page} pages to send"),
            )
            .into());
        }
        let choices = admitted.choices().iter().map(|choice| choice.index).collect();
        let outgoing = self.outbound.start(&target, transfer, held_pages, end_page);
        let work = Work::Prefill {
            sink: Arc::new(TransferSink(outgoing.sink())),
            held_pages,
        };
        let (handle, permit) = self.intake.submit(admitted, work)?;
        tracing::debug!(%transfer, target = target.worker_id, held_pages, end_page, "prefill accepted");
        Ok(Run::new(handle, permit, outgoing, choices, self.metrics.clone()))
    }
}

#[tonic::async_trait]
impl Prefill for PrefillService {
    type RunStream = Pin<Box<dyn Stream<Item = Result<PrefillEvent, Status>> + Send>>;

    async fn run(&self, request: Request<PrefillRequest>) -> Result<Response<Self::RunStream>, Status> {
        let context = trace::enter(request.metadata());
        let request = request.into_inner();
        let span = trace::span("prefill", &request.request_id, &context);
        let run = span.in_scope(|| {
            self.open(request).inspect_err(|error| {
                tracing::info!(%error, "prefill refused");
                self.metrics.runs.with_label_values(&[error.kind()]).inc();
            })
        })?;
        Ok(Response::new(Box::pin(run.into_stream(span))))
    }
}

impl KvSink for TransferSink {
    fn ready(&self, layer: u32, pages: &[(u32, PagePin)]) {
        self.0.ready(layer, pages);
    }
}

fn invalid(field: &str, problem: impl Into<String>) -> InvalidField {
    InvalidField {
        field: field.into(),
        problem: problem.into(),
    }
}
