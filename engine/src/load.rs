//! How busy an engine is: what routers decide by.

/// A snapshot, taken after the engine's last step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Sequences that hold a slot: their prompt runs or they decode.
    pub running: u32,
    /// Requests that wait for a slot, for pages, or for KV from a prefill worker.
    pub waiting: u32,
    /// Prompt tokens of all requests that no step has computed yet.
    pub waiting_tokens: u64,
    pub pages: PageLoad,
    /// Steps finished since the start: liveness is progress.
    pub steps: u64,
    /// Measured on steps that run prompts, smoothed; 0 until known.
    pub prefill_tokens_per_second: f64,
    /// Measured on steps that only decode, smoothed; 0 until known.
    pub decode_step_seconds: f64,
    /// New requests are refused.
    pub draining: bool,
}

/// Pages by state; the four states add up to `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageLoad {
    pub total: u32,
    pub free: u32,
    /// Being written by a sequence or by a hand-off on its way in.
    pub mutable: u32,
    /// Final, in use or cached.
    pub sealed: u32,
    /// Given back, but a step or a transfer still names them.
    pub retiring: u32,
    /// Of the sealed ones: kept only by the prefix cache, so they can be had at once.
    pub cached: u32,
}
