//! `messages` of a chat.

use serde_json::Value;

use super::fields::{self, Fields};
use crate::{
    error::RequestError,
    pipeline::Input,
    text::{ChatMessage, ChatOptions},
};

/// Takes `messages` and what says how to render them.
pub(super) fn parse(fields: &mut Fields, ignored: &mut Vec<String>) -> Result<Input, RequestError> {
    let messages = match fields.take("messages") {
        None => return Err(fields::missing("messages")),
        Some(Value::Array(messages)) => messages,
        Some(other) => return Err(fields::wrong_type("messages", "an array", &other)),
    };
    if messages.is_empty() {
        return Err(RequestError::field(
            "messages",
            "messages is empty: at least one message is needed",
        ));
    }
    let messages = (0..)
        .zip(messages)
        .map(|(index, value): (usize, _)| message(&format!("messages[{index}]"), value, ignored))
        .collect::<Result<_, _>>()?;
    let mut options = ChatOptions::default();
    if let Some(add) = fields.boolean("add_generation_prompt")? {
        options.add_generation_prompt = add;
    }
    if let Some(value) = fields.take("chat_template_kwargs") {
        match value {
            Value::Object(variables) => options.variables = variables.into_iter().collect(),
            other => return Err(fields::wrong_type("chat_template_kwargs", "an object", &other)),
        }
    }
    Ok(Input::Chat { messages, options })
}

fn message(path: &str, value: Value, ignored: &mut Vec<String>) -> Result<ChatMessage, RequestError> {
    let mut fields = Fields::at(path, value)?;
    let role = fields
        .text("role")?
        .ok_or_else(|| fields::missing(&fields.path("role")))?;
    let role = match role.as_str() {
        "system" | "user" | "assistant" => role,
        // OpenAI's newer name for the same.
        "developer" => "system".to_owned(),
        other => {
            let path = fields.path("role");
            let message = format!("{path} is {other:?}; supported are system, developer, user and assistant");
            return Err(RequestError::field(path, message));
        }
    };
    for name in ["tool_calls", "function_call", "audio"] {
        let asks = |value: &Value| value.as_array().is_none_or(|values| !values.is_empty());
        if fields.peek(name).is_some_and(asks) {
            let path = fields.path(name);
            let message = format!("{path} is not supported by this server");
            return Err(RequestError::field(path, message));
        }
        fields.take(name);
    }
    let content_path = fields.path("content");
    let content = match fields.take("content") {
        None => return Err(fields::missing(&content_path)),
        Some(value) => content(&content_path, value)?,
    };
    let name = fields.text("name")?;
    ignored.extend(fields.ignored());
    Ok(ChatMessage { role, content, name })
}

/// A string, or parts of text, which are joined by line breaks.
fn content(path: &str, value: Value) -> Result<String, RequestError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let texts: Vec<String> = (0..)
                .zip(parts)
                .map(|(index, value): (usize, _)| part(&format!("{path}[{index}]"), value))
                .collect::<Result<_, _>>()?;
            Ok(texts.join("\n"))
        }
        other => Err(fields::wrong_type(
            path,
            "a string or an array of text parts",
            &other,
        )),
    }
}

fn part(path: &str, value: Value) -> Result<String, RequestError> {
    let mut fields = Fields::at(path, value)?;
    let kind = fields
        .text("type")?
        .ok_or_else(|| fields::missing(&fields.path("type")))?;
    if kind != "text" {
        let path = fields.path("type");
        let message = format!("{path} is {kind:?}; this model takes only text");
        return Err(RequestError::field(path, message));
    }
    fields
        .text("text")?
        .ok_or_else(|| fields::missing(&fields.path("text")))
}
