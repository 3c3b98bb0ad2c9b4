//! Liveness is progress: a worker lives while its engine's steps advance, or while there is nothing to do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use baton_engine::EngineLoad;

/// Watches the step counter. Pure: the time comes with each look.
#[derive(Clone, Debug)]
pub struct Liveness {
    stall: Duration,
    steps: u64,
    since: Duration,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    Alive,
    /// There was work, and no step ended, for that long.
    Stalled(Duration),
}

/// What the health endpoints say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// How the engine ended: the worker is to be restarted.
    pub stopped: Option<String>,
    /// For how long the engine has stood still. It may come back.
    pub stalled: Option<Duration>,
    pub draining: bool,
}

/// Counts the requests that wait for another worker's KV, which no step of this engine can move. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct AwaitingKv(Arc<AtomicU32>);

/// One such request, until dropped.
#[derive(Debug)]
pub struct Awaiting(AwaitingKv);

impl Liveness {
    /// Work without a step for longer than `stall` is a hang.
    #[must_use]
    pub fn new(stall: Duration, now: Duration) -> Self {
        Self {
            stall,
            steps: 0,
            since: now,
        }
    }

    /// Of the requests that wait, `awaiting_kv` are not the engine's to move.
    pub fn look(&mut self, now: Duration, load: &EngineLoad, awaiting_kv: u32) -> Pulse {
        let nothing_to_do = load.running == 0 && load.waiting <= awaiting_kv;
        if nothing_to_do || load.steps != self.steps {
            self.steps = load.steps;
            self.since = now;
        }
        match now.saturating_sub(self.since) {
            still if still > self.stall => Pulse::Stalled(still),
            _ => Pulse::Alive,
        }
    }
}

impl Health {
    /// Why the worker is not alive, if it is not.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let stalled = |since: Duration| {
            format!(
                "no engine step for {:.1} s though there is work",
                since.as_secs_f64()
            )
        };
        self.stopped.clone().or_else(|| self.stalled.map(stalled))
    }

    /// Whether new work is welcome.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.stopped.is_none() && self.stalled.is_none() && !self.draining
    }
}

impl AwaitingKv {
    /// Counts one request until the result is dropped.
    #[must_use]
    pub fn enter(&self) -> Awaiting {
        self.0.fetch_add(1, Ordering::Relaxed);
        Awaiting(self.clone())
    }

    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(running: u32, waiting: u32, steps: u64) -> EngineLoad {
        EngineLoad {
            running,
            waiting,
            steps,
            ..EngineLoad::default()
        }
    }

    #[test]
    fn only_work_without_steps_is_a_stall() {
        let second = Duration::from_secs;
        let mut liveness = Liveness::new(second(10), second(0));
        assert_eq!(liveness.look(second(50), &load(0, 0, 0), 0), Pulse::Alive, "idle");
        assert_eq!(
            liveness.look(second(100), &load(0, 2, 0), 2),
            Pulse::Alive,
            "all wait for hand-offs"
        );
        assert_eq!(
            liveness.look(second(105), &load(1, 0, 0), 0),
            Pulse::Alive,
            "not for long"
        );
        assert_eq!(
            liveness.look(second(111), &load(1, 0, 0), 0),
            Pulse::Stalled(second(11))
        );
        assert_eq!(
            liveness.look(second(112), &load(1, 0, 1), 0),
            Pulse::Alive,
            "it moved"
        );
        assert_eq!(
            liveness.look(second(123), &load(0, 3, 1), 2),
            Pulse::Stalled(second(11))
        );
    }
}
