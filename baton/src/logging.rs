//! Logs: for people by default, JSON lines on request. Always on standard error: standard output belongs to results.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How this process logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    pub format: LogFormat,
    /// Directives as in `info,baton_engine=debug`.
    pub filter: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Human,
    Json,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Human,
            filter: "info".into(),
        }
    }
}

/// Starts logging for the whole process.
///
/// # Errors
/// When the filter cannot be read.
pub fn start(config: &LogConfig) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.filter).with_context(|| {
        format!(
            "log.filter = {:?}: write directives as in \"info,baton_engine=debug\"",
            config.filter
        )
    })?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match config.format {
        LogFormat::Human => logs.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => logs.json().flatten_event(true).with_span_list(true).init(),
    }
    Ok(())
}
