//! The model on the CPU: a forward pass that reads like the paper, and an executor that runs it step by step.
//!
//! `Model` holds packed weights; `Forward` turns a `Batch` of ragged rows into logits; `Runner` does what a step plan says;
//! [`CpuExecutor`] does that on its own thread, two steps deep.

mod batch;
mod config;
mod executor;
mod forward;
mod model;
mod plan_error;
mod projection;
mod prompt;
mod runner;
mod slots;
#[cfg(test)]
mod tests;

pub use config::CpuExecutorConfig;
pub use executor::CpuExecutor;
pub use model::Model;
pub use prompt::prompt_logits;

use plan_error::PlanError;
