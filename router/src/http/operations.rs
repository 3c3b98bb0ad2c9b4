//! What is asked about the router itself.

use axum::{
    Json,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use baton_proto::PROTOCOL_VERSION;
use prometheus::{Encoder as _, TextEncoder};
use serde_json::{Value, json};

use super::{App, reply};
use crate::error::RequestError;

/// The one model is listed even while no worker serves it.
pub(super) async fn models(State(app): State<App>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [described(&app)] }))
}

pub(super) async fn model(State(app): State<App>, Path(id): Path<String>) -> Response {
    match app.pipeline.check_model(&id) {
        Ok(()) => Json(described(&app)).into_response(),
        Err(error) => reply::error(&error),
    }
}

/// The process answers.
pub(super) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// A request would be served now.
pub(super) async fn ready(State(app): State<App>) -> Response {
    if app.pipeline.is_ready() {
        return Json(json!({ "status": "ready" })).into_response();
    }
    reply::error(&RequestError::NoWorkers {
        model: app.pipeline.model.clone(),
        retry_after: app.pipeline.config.retry_after_seconds,
    })
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION"), "protocol_version": PROTOCOL_VERSION }))
}

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let encoder = TextEncoder::new();
    let mut out = Vec::new();
    match encoder.encode(&app.prometheus.gather(), &mut out) {
        Ok(()) => ([(header::CONTENT_TYPE, encoder.format_type())], out).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn described(app: &App) -> Value {
    json!({
        "id": app.pipeline.model,
        "object": "model",
        "created": 0,
        "owned_by": "baton",
        "max_model_len": app.pipeline.context_tokens(),
        "ready": app.pipeline.is_ready(),
    })
}
