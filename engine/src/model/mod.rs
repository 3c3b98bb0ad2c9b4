//! Which models run here, and what their `config.json` says.

mod config;
mod error;
mod hf;
#[cfg(test)]
mod tests;

pub use config::{Architecture, ModelConfig, Rope};
pub use error::ModelError;
