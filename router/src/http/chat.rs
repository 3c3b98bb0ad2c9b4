//! `POST /v1/chat/completions`, and what it shares with completions: from the request to its response.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    response::Response,
};
use baton_proto::trace_context::TRACEPARENT;

use super::{
    App, RequestId, body,
    fields::Fields,
    generation_fields::{self, Delivery},
    messages, reply,
    shape::{Dialect, Shape, ShapeSettings},
    stream,
};
use crate::{
    error::RequestError,
    pipeline::{GenerateCall, RequestContext},
};

/// Takes an endpoint's fields apart; what it leaves is ignored, and named to the client.
type Parse = fn(&mut Fields, &HeaderMap, &mut Vec<String>) -> Result<(GenerateCall, Delivery), RequestError>;

pub(super) async fn chat_completions(State(app): State<App>, request: Request) -> Response {
    serve(&app, Dialect::Chat, request, parse).await
}

/// One request to either endpoint.
pub(super) async fn serve(app: &App, dialect: Dialect, request: Request, parse: Parse) -> Response {
    let headers = request.headers().clone();
    let endpoint = super::endpoint(request.uri().path());
    let request_id = request.extensions().get::<RequestId>().map(|id| id.0.clone());
    let traceparent = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let mut context = RequestContext::new(
        &app.pipeline.metrics,
        endpoint,
        request_id.as_deref(),
        traceparent,
    );
    let request_id = context.request_id.clone();

    let mut ignored = Vec::new();
    let parsed = body::read(app, request).await.and_then(|mut fields| {
        let parsed = parse(&mut fields, &headers, &mut ignored)?;
        ignored.extend(fields.ignored());
        Ok(parsed)
    });
    let (call, delivery) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            context.fail(&error);
            return reply::error(&error);
        }
    };
    let shape = Shape::new(ShapeSettings {
        dialect,
        request_id,
        model: app.pipeline.model.clone(),
        text: Arc::clone(&app.pipeline.text),
        include_usage: delivery.include_usage,
        with_logprobs: call.sampling.logprobs.is_some(),
        answers: call
            .inputs
            .len()
            .saturating_mul(call.choices as usize)
            .min(answers_limit(app)),
    });
    let mut response = match app.pipeline.start(call, context).await {
        Err(error) => reply::error(&error),
        Ok(generation) if delivery.stream => {
            stream::events(generation, shape, app.pipeline.config.keep_alive()).await
        }
        Ok(generation) => stream::whole(generation, shape).await,
    };
    reply::name_ignored(&mut response, &ignored);
    response
}

/// The shape is made before the ranges are checked.
fn answers_limit(app: &App) -> usize {
    app.pipeline
        .config
        .max_prompts
        .saturating_mul(app.pipeline.config.max_choices as usize)
}

fn parse(
    fields: &mut Fields,
    headers: &HeaderMap,
    ignored: &mut Vec<String>,
) -> Result<(GenerateCall, Delivery), RequestError> {
    let (mut call, delivery) = generation_fields::parse(fields, headers, ignored)?;
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top: Option<u32> = fields.integer("top_logprobs")?;
    if top.is_some() && !wanted {
        return Err(RequestError::field(
            "top_logprobs",
            "top_logprobs needs logprobs to be true",
        ));
    }
    call.sampling.logprobs = wanted.then(|| top.unwrap_or(0));
    call.input_field = "messages";
    call.inputs = vec![messages::parse(fields, ignored)?];
    Ok((call, delivery))
}
