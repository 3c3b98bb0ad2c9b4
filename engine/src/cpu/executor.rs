//! The executor's two halves: the scheduler's side, and the thread that computes.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use baton_kernels::{
    Threads,
    kv::{HostKv, KvMemory},
};

use super::{CpuExecutorConfig, Model, runner::Runner};
use crate::{
    executor::{Executor, ExecutorError, ExecutorLimits, Ticket, Wake},
    model::ModelError,
    step::{StepId, StepOutcome, StepPlan},
};

const STEPS_IN_FLIGHT: usize = 2;

/// Runs steps on the CPU, on its own thread and a pool beside it.
///
/// Every number of a row depends on that row alone, so tokens are equal whatever else is in the batch, however the
/// prompt is cut into chunks, and whatever the number of threads.
pub struct CpuExecutor {
    limits: ExecutorLimits,
    memory: Arc<HostKv>,
    /// In the order of submission.
    flights: VecDeque<Flight>,
    results: Receiver<Result<StepOutcome, ExecutorError>>,
    failed: Option<Failure>,
    /// Dropped first when the executor ends: the thread stops at the end of its input.
    steps: Option<SyncSender<Step>>,
    thread: Option<JoinHandle<()>>,
}

/// A submitted step whose outcome was not handed out yet.
struct Flight {
    step: StepId,
    layers_done: Arc<AtomicU32>,
    outcome: Option<StepOutcome>,
}

/// What the compute thread is sent.
struct Step {
    plan: StepPlan,
    layers_done: Arc<AtomicU32>,
}

struct Failure {
    step: Option<StepId>,
    reason: String,
}

impl CpuExecutor {
    /// Loads a checkpoint in the Hugging Face layout and starts the compute thread.
    ///
    /// # Errors
    /// [`ModelError`] where the checkpoint is not one that runs here, or the sizes do not fit it.
    pub fn load(model_dir: &Path, config: &CpuExecutorConfig, wake: Wake) -> Result<Self, ModelError> {
        Self::new(Arc::new(Model::load(model_dir)?), config, wake)
    }

    /// Runs a model that is loaded already; several executors may share it.
    ///
    /// # Errors
    /// [`ModelError`] where the sizes do not fit the model, or a thread does not start.
    pub fn new(model: Arc<Model>, config: &CpuExecutorConfig, wake: Wake) -> Result<Self, ModelError> {
        config.validate()?;
        let shape = model.config();
        let limits = ExecutorLimits {
            pages: config.pages,
            slots: config.slots,
            context_tokens: config.context(shape)?,
            tokens_per_sample: 1,
            steps_in_flight: STEPS_IN_FLIGHT,
            layers: shape.layers as u32,
            vocab: shape.vocab as u32,
        };
        let memory = Arc::new(HostKv::new(config.layout(shape), config.pages)?);
        let threads =
            Threads::new(config.thread_count()).map_err(|error| ModelError::Threads(error.to_string()))?;
        let runner = Runner::new(model, Arc::clone(&memory), threads, limits);

        let (steps, inbox) = sync_channel(STEPS_IN_FLIGHT);
        let (outbox, results) = sync_channel(STEPS_IN_FLIGHT);
        let thread = thread::Builder::new()
            .name("baton-compute".to_owned())
            .spawn(move || compute(runner, &inbox, &outbox, &wake))
            .map_err(|error| ModelError::Threads(error.to_string()))?;
        Ok(Self {
            limits,
            memory,
            flights: VecDeque::with_capacity(STEPS_IN_FLIGHT),
            results,
            failed: None,
            steps: Some(steps),
            thread: Some(thread),
        })
    }

    /// Takes what the compute thread has finished.
    fn collect(&mut self) -> Result<(), ExecutorError> {
        loop {
            match self.results.try_recv() {
                Ok(Ok(outcome)) => {
                    if let Some(flight) = self.flights.iter_mut().find(|flight| flight.step == outcome.step) {
                        flight.outcome = Some(outcome);
                    }
                }
                Ok(Err(error)) => {
                    self.failed = Some(Failure {
                        step: error.step,
                        reason: error.reason,
                    });
                }
                Err(TryRecvError::Disconnected) if self.failed.is_none() => {
                    self.failed = Some(Failure {
                        step: None,
                        reason: "the compute thread ended".to_owned(),
                    });
                }
                Err(TryRecvError::Disconnected | TryRecvError::Empty) => break,
            }
        }
        match &self.failed {
            None => Ok(()),
            Some(failure) => Err(failure.error()),
        }
    }

    fn flight(&self, ticket: &Ticket) -> Option<usize> {
        self.flights.iter().position(|flight| flight.step == ticket.0)
    }
}

impl Executor for CpuExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn kv_memory(&self) -> Arc<dyn KvMemory> {
        Arc::clone(&self.memory) as Arc<dyn KvMemory>
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        self.collect()?;
        let step = plan.step;
        let refused = |reason: &str| ExecutorError {
            step: Some(step),
            reason: reason.to_owned(),
        };
        if self.flights.len() == STEPS_IN_FLIGHT {
            return Err(refused("too many steps are in flight"));
        }
        let layers_done = Arc::new(AtomicU32::new(0));
        self.flights.push_back(Flight {
            step,
            layers_done: Arc::clone(&layers_done),
            outcome: None,
        });
        let sent = self
            .steps
            .as_ref()
            .is_some_and(|steps| steps.try_send(Step { plan, layers_done }).is_ok());
        if sent {
            Ok(Ticket(step))
        } else {
            Err(refused("the compute thread ended"))
        }
    }

    fn poll(&mut self, ticket: &Ticket) -> Result<Option<StepOutcome>, ExecutorError> {
        let collected = self.collect();
        // What was finished before a failure is still handed out.
        if let Some(place) = self.flight(ticket)
            && self.flights[place].outcome.is_some()
        {
            return Ok(self.flights.remove(place).and_then(|flight| flight.outcome));
        }
        collected.map(|()| None)
    }

    fn layers_done(&self, ticket: &Ticket) -> u32 {
        match self.flight(ticket) {
            Some(place) => self.flights[place].layers_done.load(Ordering::Acquire),
            None => self.limits.layers,
        }
    }
}

impl Drop for CpuExecutor {
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            // Its panics were caught and reported.
            let _ = thread.join();
        }
    }
}

impl Failure {
    fn error(&self) -> ExecutorError {
        ExecutorError {
            step: self.step,
            reason: self.reason.clone(),
        }
    }
}

/// The compute thread: steps in, outcomes out, until the input ends or a step fails.
fn compute(
    mut runner: Runner,
    inbox: &Receiver<Step>,
    outbox: &SyncSender<Result<StepOutcome, ExecutorError>>,
    wake: &Wake,
) {
    for Step { plan, layers_done } in inbox {
        let step = plan.step;
        let published = |layers| {
            // Whoever reads the count reads KV that was written before it.
            layers_done.store(layers, Ordering::Release);
            wake();
        };
        let run = panic::catch_unwind(AssertUnwindSafe(|| runner.run(&plan, published)));
        let result = match run {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(defect)) => Err(format!("impossible plan: {defect}")),
            Err(panic) => Err(format!("panic: {}", panic_message(panic.as_ref()))),
        }
        .map_err(|reason| ExecutorError {
            step: Some(step),
            reason,
        });
        let failed = result.is_err();
        let sent = outbox.send(result).is_ok();
        wake();
        if failed || !sent {
            return;
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
