//! The fake executor behind a gate that a test can close, so that a worker stands still wherever the test wants.

use std::sync::Arc;

use baton_engine::{
    BoxError, EngineConfig,
    executor::{Executor, ExecutorError, ExecutorLimits, Ticket, Wake},
    fake::{FakeConfig, FakeExecutor},
    step::{StepOutcome, StepPlan},
};
use baton_kernels::kv::KvMemory;
use parking_lot::Mutex;

use super::{PAGE_TOKENS, VOCAB};

pub(crate) const LAYERS: u32 = 3;

/// Lets steps finish, or not. Clones are the same gate.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Mutex<GateState>>);

struct GateState {
    /// Steps that may still finish; none: any number.
    left: Option<u32>,
    broken: bool,
    wake: Option<Wake>,
}

struct GatedExecutor {
    inner: FakeExecutor,
    gate: Gate,
}

pub(crate) type Factory = Box<dyn FnOnce(Wake) -> Result<Box<dyn Executor>, BoxError> + Send>;

impl Gate {
    pub(crate) fn open() -> Self {
        Self::with(None)
    }

    pub(crate) fn closed() -> Self {
        Self::with(Some(0))
    }

    /// Lets so many steps finish, and no more.
    pub(crate) fn after(steps: u32) -> Self {
        Self::with(Some(steps))
    }

    fn with(left: Option<u32>) -> Self {
        Self(Arc::new(Mutex::new(GateState {
            left,
            broken: false,
            wake: None,
        })))
    }

    pub(crate) fn release(&self) {
        self.change(|state| state.left = None);
    }

    /// The device fails.
    pub(crate) fn break_down(&self) {
        self.change(|state| {
            state.left = None;
            state.broken = true;
        });
    }

    fn change(&self, change: impl FnOnce(&mut GateState)) {
        let mut state = self.0.lock();
        change(&mut state);
        if let Some(wake) = &state.wake {
            wake();
        }
    }

    fn passes(&self) -> bool {
        self.0.lock().left != Some(0)
    }

    fn passed(&self) {
        let mut state = self.0.lock();
        state.left = state.left.map(|left| left.saturating_sub(1));
    }

    fn broken(&self) -> bool {
        self.0.lock().broken
    }
}

pub(crate) fn factory(engine: &EngineConfig, gate: Gate) -> Factory {
    let config = FakeConfig {
        limits: ExecutorLimits {
            pages: engine.kv_pages,
            slots: engine.max_running,
            context_tokens: 2048,
            tokens_per_sample: 1,
            steps_in_flight: 2,
            layers: LAYERS,
            vocab: VOCAB,
        },
        page_tokens: PAGE_TOKENS,
        seed: 3,
        step_seconds: 0.001,
        token_seconds: 0.0001,
    };
    Box::new(move |wake| {
        gate.0.lock().wake = Some(Arc::clone(&wake));
        let inner = FakeExecutor::new(config, Some(wake));
        Ok(Box::new(GatedExecutor { inner, gate }))
    })
}

impl Executor for GatedExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.inner.limits()
    }

    fn kv_memory(&self) -> Arc<dyn KvMemory> {
        self.inner.kv_memory()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        self.inner.submit(plan)
    }

    fn poll(&mut self, ticket: &Ticket) -> Result<Option<StepOutcome>, ExecutorError> {
        if self.gate.broken() {
            self.inner.break_down("the test broke it");
        }
        if !self.gate.passes() {
            return Ok(None);
        }
        let outcome = self.inner.poll(ticket)?;
        if outcome.is_some() {
            self.gate.passed();
        }
        Ok(outcome)
    }

    fn layers_done(&self, ticket: &Ticket) -> u32 {
        self.inner.layers_done(ticket)
    }
}
