//! HTTP in OpenAI's dialect.

mod body;
mod chat;
mod completions;
mod fields;
mod generation_fields;
mod logprobs;
mod messages;
mod operations;
mod reply;
mod shape;
mod stream;
mod text_endpoints;
mod unsupported;
mod wire;

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method},
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};

use crate::{
    error::RequestError,
    pipeline::{Pipeline, request_id},
};

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What handlers share.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) prometheus: prometheus::Registry,
}

/// The id of a request, for every handler.
#[derive(Clone, Debug)]
struct RequestId(String);

/// All routes.
pub(crate) fn routes(app: App) -> Router {
    Router::new()
        .route("/v1/models", get(operations::models))
        .route("/v1/models/{*id}", get(operations::model))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/tokenize", post(text_endpoints::tokenize))
        .route("/detokenize", post(text_endpoints::detokenize))
        .route("/health", get(operations::health))
        .route("/ready", get(operations::ready))
        .route("/version", get(operations::version))
        .route("/metrics", get(operations::metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), named_and_counted))
        .with_state(app)
}

/// Every response carries the request's id. Requests that the pipeline does not count itself are counted here.
async fn named_and_counted(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let asked = request
        .headers()
        .get(X_REQUEST_ID)
        .and_then(|id| id.to_str().ok());
    let id = request_id(asked);
    let endpoint = endpoint(request.uri().path());
    let own_record =
        request.method() == Method::POST && matches!(endpoint, "completions" | "chat_completions");
    let mut record = (!own_record).then(|| app.pipeline.metrics.begin(endpoint));
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    if let Some(record) = &mut record {
        record.end(response.status().as_u16());
    }
    response
}

async fn unknown_path(request: Request) -> Response {
    reply::error(&RequestError::UnknownPath {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    })
}

async fn method_not_allowed(request: Request) -> Response {
    reply::error(&RequestError::MethodNotAllowed {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    })
}

/// Label of the metrics: bounded, whatever paths clients make up.
fn endpoint(path: &str) -> &'static str {
    match path {
        "/v1/completions" => "completions",
        "/v1/chat/completions" => "chat_completions",
        "/tokenize" => "tokenize",
        "/detokenize" => "detokenize",
        "/health" => "health",
        "/ready" => "ready",
        "/version" => "version",
        "/metrics" => "metrics",
        path if path.starts_with("/v1/models") => "models",
        _ => "other",
    }
}
