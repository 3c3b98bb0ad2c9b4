//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{
    App, body,
    fields::{self, Fields},
    messages, reply,
};
use crate::{error::RequestError, pipeline::Input};

/// `{prompt}` or `{messages}` in, `{count, max_model_len, tokens}` out.
pub(super) async fn tokenize(State(app): State<App>, request: Request) -> Response {
    let mut ignored = Vec::new();
    let answer = async {
        let mut fields = body::read(&app, request).await?;
        check_model(&app, &mut fields)?;
        let (input, field) = if fields.peek("messages").is_some() {
            (messages::parse(&mut fields, &mut ignored)?, "messages")
        } else {
            let text = fields.text("prompt")?.ok_or_else(|| fields::missing("prompt"))?;
            let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
            let input = Input::Text {
                text,
                add_special_tokens,
            };
            (input, "prompt")
        };
        ignored.extend(fields.ignored());
        let tokens = app.pipeline.encode(input, field).await?;
        let limit = app.pipeline.context_tokens();
        Ok(json!({ "count": tokens.len(), "max_model_len": limit, "tokens": tokens }))
    };
    let answer = answer.await;
    respond(answer, &ignored)
}

/// `{tokens}` in, `{prompt}` out.
pub(super) async fn detokenize(State(app): State<App>, request: Request) -> Response {
    let mut ignored = Vec::new();
    let answer = async {
        let mut fields = body::read(&app, request).await?;
        check_model(&app, &mut fields)?;
        let tokens = fields
            .token_ids("tokens")?
            .ok_or_else(|| fields::missing("tokens"))?;
        ignored.extend(fields.ignored());
        let text = Arc::clone(&app.pipeline.text);
        let work = move || text.check_ids(&tokens).and_then(|()| text.decode(&tokens, false));
        let prompt = app
            .pipeline
            .pool
            .run(work)
            .await
            .map_err(|error| RequestError::text("tokens", &error))?;
        Ok(json!({ "prompt": prompt }))
    };
    let answer = answer.await;
    respond(answer, &ignored)
}

fn check_model(app: &App, fields: &mut Fields) -> Result<(), RequestError> {
    app.pipeline
        .check_model(&fields.text("model")?.unwrap_or_default())
}

fn respond(answer: Result<Value, RequestError>, ignored: &[String]) -> Response {
    let mut response = match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => reply::error(&error),
    };
    reply::name_ignored(&mut response, ignored);
    response
}
