//! The seam between scheduling and arithmetic.

use std::sync::Arc;

use baton_kernels::kv::KvMemory;

use crate::step::{StepId, StepOutcome, StepPlan};

/// Runs steps, asynchronously and in order.
///
/// The scheduler cannot tell implementations apart: [`CpuExecutor`](crate::cpu::CpuExecutor) computes,
/// [`FakeExecutor`](crate::fake::FakeExecutor) makes tokens up.
pub trait Executor: Send {
    /// What the scheduler must respect.
    fn limits(&self) -> ExecutorLimits;

    /// The KV pages, which transports read and write beside the steps.
    fn kv_memory(&self) -> Arc<dyn KvMemory>;

    /// Queues a step. At most [`ExecutorLimits::steps_in_flight`] may be unfinished.
    ///
    /// # Errors
    /// When the device failed: the engine stops, and the process is to be restarted.
    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError>;

    /// The outcome of a step if it is finished; each outcome is handed out once, in the order of submission.
    ///
    /// # Errors
    /// As [`Executor::submit`].
    fn poll(&mut self, ticket: &Ticket) -> Result<Option<StepOutcome>, ExecutorError>;

    /// How many layers of the step have written their KV. The step's slices of those layers may be sent.
    fn layers_done(&self, ticket: &Ticket) -> u32;
}

/// Names a submitted step.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub StepId);

/// Called by the executor whenever [`Executor::poll`] or [`Executor::layers_done`] may answer anew.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// What an executor can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorLimits {
    /// Pages in its KV memory.
    pub pages: u32,
    /// Slots that can be open together.
    pub slots: u32,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Most tokens one row can sample in one step: k + 1 with speculation, else 1.
    pub tokens_per_sample: u32,
    /// Steps that may be unfinished together.
    pub steps_in_flight: usize,
    /// Layers of the model, the final value of [`Executor::layers_done`].
    pub layers: u32,
    /// Size of the vocabulary: every token id is below it.
    pub vocab: u32,
}

/// The device cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("device failed in step {step:?}: {reason}")]
pub struct ExecutorError {
    pub step: Option<StepId>,
    pub reason: String,
}
