//! Documented fields of OpenAI's and vLLM's APIs that Baton does not have. Ignoring one that asks for something would
//! give an answer to another question, so it is refused by name.

use serde_json::Value;

use super::fields::Fields;
use crate::error::RequestError;

/// A field, and the values that ask for nothing.
type Row = (&'static str, fn(&Value) -> bool);

const TABLE: [Row; 34] = [
    ("tools", is_empty),
    ("functions", is_empty),
    ("tool_choice", |value| value == "none" || value == "auto"),
    ("function_call", |value| value == "none" || value == "auto"),
    ("response_format", |value| value["type"] == "text"),
    ("guided_json", never),
    ("guided_regex", never),
    ("guided_choice", never),
    ("guided_grammar", never),
    ("structured_outputs", is_empty),
    ("prompt_logprobs", never),
    ("prompt_embeds", never),
    ("echo", is_false),
    ("best_of", |value| value == 1),
    ("suffix", |value| value == ""),
    ("use_beam_search", is_false),
    ("length_penalty", |value| value.as_f64() == Some(1.0)),
    ("bad_words", is_empty),
    ("logits_processors", is_empty),
    ("truncate_prompt_tokens", never),
    ("include_stop_str_in_output", is_false),
    ("return_token_ids", is_false),
    ("return_tokens_as_token_ids", is_false),
    ("continue_final_message", is_false),
    ("chat_template", never),
    ("documents", is_empty),
    ("audio", never),
    ("modalities", |value| {
        value
            .as_array()
            .is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))
    }),
    ("prediction", never),
    ("web_search_options", never),
    ("mm_processor_kwargs", is_empty),
    ("kv_transfer_params", never),
    ("media_io_kwargs", is_empty),
    ("thinking_token_budget", never),
];

/// Refuses the first unsupported field that asks for something, and takes those that do not.
pub(super) fn check(fields: &mut Fields) -> Result<(), RequestError> {
    for (name, asks_nothing) in TABLE {
        if let Some(value) = fields.peek(name) {
            if !asks_nothing(value) {
                let path = fields.path(name);
                return Err(RequestError::Invalid {
                    code: "unsupported_parameter",
                    message: format!("{path} is not supported by this server: remove it from the request."),
                    param: Some(path),
                });
            }
            fields.take(name);
        }
    }
    Ok(())
}

fn never(_: &Value) -> bool {
    false
}

fn is_false(value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
