//! `POST /v1/completions`.

use axum::{
    extract::{Request, State},
    http::HeaderMap,
    response::Response,
};
use serde_json::Value;

use super::{
    App, chat,
    fields::{self, Fields},
    generation_fields::{self, Delivery},
    shape::Dialect,
};
use crate::{
    error::RequestError,
    pipeline::{GenerateCall, Input},
};

/// What OpenAI gives a completion that names no `max_tokens`.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(super) async fn completions(State(app): State<App>, request: Request) -> Response {
    chat::serve(&app, Dialect::Completions, request, parse).await
}

fn parse(
    fields: &mut Fields,
    headers: &HeaderMap,
    ignored: &mut Vec<String>,
) -> Result<(GenerateCall, Delivery), RequestError> {
    let (mut call, delivery) = generation_fields::parse(fields, headers, ignored)?;
    call.default_max_tokens = Some(DEFAULT_MAX_TOKENS);
    call.sampling.logprobs = fields.integer("logprobs")?;
    let add_special_tokens = fields.boolean("add_special_tokens")?.unwrap_or(true);
    call.input_field = "prompt";
    call.inputs = match fields.take("prompt") {
        None => return Err(fields::missing("prompt")),
        Some(prompt) => prompts(prompt, add_special_tokens)?,
    };
    Ok((call, delivery))
}

/// A text, several texts, token ids, or several lists of them.
fn prompts(prompt: Value, add_special_tokens: bool) -> Result<Vec<Input>, RequestError> {
    let text = |text| Input::Text {
        text,
        add_special_tokens,
    };
    match prompt {
        Value::String(prompt) => Ok(vec![text(prompt)]),
        Value::Array(values) => match values.first() {
            None => Err(RequestError::field("prompt", "prompt is an empty array")),
            Some(Value::Number(_)) => Ok(vec![Input::Tokens(fields::token_ids(
                "prompt",
                &Value::Array(values),
            )?)]),
            Some(Value::String(_)) => (0..)
                .zip(values)
                .map(|(index, value): (usize, _)| match value {
                    Value::String(prompt) => Ok(text(prompt)),
                    other => Err(fields::wrong_type(
                        &format!("prompt[{index}]"),
                        "a string like the first",
                        &other,
                    )),
                })
                .collect(),
            Some(_) => (0..)
                .zip(values)
                .map(|(index, value): (usize, _)| {
                    fields::token_ids(&format!("prompt[{index}]"), &value).map(Input::Tokens)
                })
                .collect(),
        },
        other => Err(fields::wrong_type(
            "prompt",
            "a string, an array of strings, or token ids",
            &other,
        )),
    }
}
