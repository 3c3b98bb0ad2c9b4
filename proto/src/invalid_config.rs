//! The error of every component's `validate()`. Not wire: it lives here because this is the one crate that all
//! components share.

use std::fmt::Display;

/// A configuration value that cannot work, with what would.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} = {found}: {expected}")]
pub struct InvalidConfig {
    /// Path of the value in `baton.toml`, as in `engine.page_tokens`.
    pub field: String,
    pub found: String,
    /// What is allowed, as in `choose 16, 32, 64 or 128`.
    pub expected: String,
}

impl InvalidConfig {
    #[must_use]
    pub fn new(field: impl Into<String>, found: impl Display, expected: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}
