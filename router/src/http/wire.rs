//! Response bodies in OpenAI's shapes.

use std::collections::BTreeMap;

use serde::Serialize;

/// A whole response or one chunk of a stream, over the shape of its choices.
#[derive(Debug, Serialize)]
pub(super) struct Envelope<'a, C> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: Vec<C>,
    /// In a stream that will report its usage, every chunk before that has null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<UsageBody>>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct UsageBody {
    pub(super) prompt_tokens: u32,
    pub(super) completion_tokens: u32,
    pub(super) total_tokens: u32,
    pub(super) prompt_tokens_details: PromptDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PromptDetails {
    pub(super) cached_tokens: u32,
}

/// What ended an answer: a stop string or a stop token.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum StopReason {
    String(String),
    Token(u32),
}

#[derive(Debug, Serialize)]
pub(super) struct CompletionChoice {
    pub(super) index: u32,
    pub(super) text: String,
    pub(super) logprobs: Option<CompletionLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: Option<StopReason>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatChoice {
    pub(super) index: u32,
    pub(super) message: ChatAnswer,
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: Option<StopReason>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatAnswer {
    pub(super) role: &'static str,
    pub(super) content: String,
    pub(super) refusal: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatChunkChoice {
    pub(super) index: u32,
    pub(super) delta: ChatDelta,
    pub(super) logprobs: Option<ChatLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: Option<StopReason>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
}

/// The older form, of `/v1/completions`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    pub(super) tokens: Vec<String>,
    pub(super) token_logprobs: Vec<f32>,
    pub(super) top_logprobs: Vec<BTreeMap<String, f32>>,
    /// In characters from the start of the answer.
    pub(super) text_offset: Vec<usize>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ChatLogprobs {
    pub(super) content: Vec<ChatLogprob>,
    pub(super) refusal: Option<()>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ChatLogprob {
    #[serde(flatten)]
    pub(super) chosen: TokenLogprob,
    pub(super) top_logprobs: Vec<TokenLogprob>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct TokenLogprob {
    pub(super) token: String,
    pub(super) logprob: f32,
    pub(super) bytes: Vec<u8>,
}
