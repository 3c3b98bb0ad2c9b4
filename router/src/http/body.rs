//! A request's body, as far as its fields.

use axum::{
    body::Bytes,
    extract::Request,
    http::{HeaderMap, header},
};
use futures::StreamExt as _;
use serde_json::Value;

use super::{App, fields::Fields};
use crate::error::RequestError;

/// Reads a JSON object within the configured size and time.
pub(super) async fn read(app: &App, request: Request) -> Result<Fields, RequestError> {
    check_media_type(request.headers())?;
    let limit = app.pipeline.config.max_body_bytes;
    let time = app.pipeline.config.body_timeout();
    let bytes = tokio::time::timeout(time, collect(request, limit))
        .await
        .map_err(|_| RequestError::BodyTimeout(time))??;
    parse(&bytes)
}

/// What the OpenAI clients send. A body without a type is taken for JSON.
fn check_media_type(headers: &HeaderMap) -> Result<(), RequestError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let essence = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    Err(RequestError::MediaType(value))
}

async fn collect(request: Request, limit: usize) -> Result<Bytes, RequestError> {
    let declared = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(RequestError::BodyTooLarge { limit });
    }
    let mut stream = request.into_body().into_data_stream();
    let mut bytes = Vec::with_capacity(declared.unwrap_or(0));
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| RequestError::Invalid {
            param: None,
            code: "incomplete_body",
            message: format!("The body could not be read: {error}"),
        })?;
        if bytes.len() + chunk.len() > limit {
            return Err(RequestError::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

fn parse(bytes: &[u8]) -> Result<Fields, RequestError> {
    let invalid = |message: String| RequestError::Invalid {
        param: None,
        code: "invalid_json",
        message,
    };
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => Ok(Fields::new(fields)),
        Ok(other) => Err(invalid(format!(
            "The body must be a JSON object, not {}.",
            super::fields::kind(&other)
        ))),
        Err(error) => Err(invalid(format!("The body is not valid JSON: {error}."))),
    }
}
