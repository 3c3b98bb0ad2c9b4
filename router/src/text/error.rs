//! What can go wrong between text and tokens.

use std::path::PathBuf;

/// Loading errors name the file; request errors name what in the request was refused.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not what a model directory holds: {detail}")]
    Malformed { path: PathBuf, detail: String },
    #[error("the chat template of {path} does not compile: {detail}")]
    Template { path: PathBuf, detail: String },
    #[error(
        "this model has no chat template: use /v1/completions, or add chat_template.jinja to its directory"
    )]
    NoTemplate,
    /// The template itself refused the messages, by `raise_exception`.
    #[error("the chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the chat template failed: {0}")]
    Render(String),
    #[error("the chat template did not end within {0} steps")]
    Endless(u64),
    #[error("the text holds every character that could mark special-token text in it")]
    Unmarkable,
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    #[error("token id {0} is outside the vocabulary of {1}")]
    UnknownToken(u32, u32),
}

impl TextError {
    /// Whether the request is at fault, rather than the model's files.
    #[must_use]
    pub fn is_request(&self) -> bool {
        match self {
            Self::NoTemplate
            | Self::Refused(_)
            | Self::Render(_)
            | Self::Endless(_)
            | Self::Unmarkable
            | Self::UnknownToken(..) => true,
            Self::Read { .. } | Self::Malformed { .. } | Self::Template { .. } | Self::Tokenizer(_) => false,
        }
    }
}
