//! `Decode.Generate`: from the message to a [`Relay`].

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use baton_engine::request::Work;
use baton_proto::{
    TraceContext,
    v1::{DecodeEvent, DecodeRequest, decode_server::Decode},
};
use baton_worker::{Intake, ServeError, request::RequestFields, trace};
use futures::Stream;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::{
    handoff::Peers,
    relay::{Relay, Runner},
};

pub(crate) struct DecodeService {
    intake: Intake,
    peers: Arc<Peers>,
    page_tokens: u32,
}

impl DecodeService {
    pub(crate) fn new(intake: Intake, peers: Arc<Peers>, page_tokens: u32) -> Self {
        Self {
            intake,
            peers,
            page_tokens,
        }
    }

    fn open(&self, mut request: DecodeRequest, trace: TraceContext) -> Result<Relay, ServeError> {
        let mut candidates = VecDeque::from(std::mem::take(&mut request.prefill));
        candidates.truncate(self.peers.config.max_handoffs);
        let admitted = self.intake.admit(RequestFields::from(&request))?;
        // Choices that have emitted different tokens are different prompts to a prefill worker.
        if !admitted.one_prompt() {
            candidates.clear();
        }
        let work = if candidates.is_empty() {
            Work::Generate
        } else {
            Work::GenerateFromHandoff {
                min_missing_tokens: request.remote_prefill_min_tokens.max(1),
            }
        };
        let stop_tokens = admitted.stop().stop_tokens.clone();
        let deadline = request
            .deadline_ms
            .map(|left| Instant::now() + Duration::from_millis(left));
        let (handle, permit) = self.intake.submit(admitted, work)?;
        tracing::debug!(
            prompt_tokens = request.prompt_ids.len(),
            candidates = candidates.len(),
            "accepted"
        );
        Ok(Relay::new(Runner {
            intake: self.intake.clone(),
            peers: Arc::clone(&self.peers),
            handle,
            _permit: permit,
            request,
            candidates,
            stop_tokens,
            deadline,
            trace,
            page_tokens: self.page_tokens,
        }))
    }
}

#[tonic::async_trait]
impl Decode for DecodeService {
    type GenerateStream = Pin<Box<dyn Stream<Item = Result<DecodeEvent, Status>> + Send>>;

    async fn generate(
        &self,
        request: Request<DecodeRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let context = trace::enter(request.metadata());
        let request = request.into_inner();
        let span = trace::span("decode", &request.request_id, &context);
        let relay = span.in_scope(|| {
            self.open(request, context)
                .inspect_err(|error| tracing::info!(%error, "request refused"))
        })?;
        Ok(Response::new(Box::pin(relay.into_stream(span))))
    }
}
