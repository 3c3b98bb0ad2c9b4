//! The threads that operations split their work over.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The calling thread and a pool beside it. How work is split never shows in results.
#[derive(Debug)]
pub struct Threads {
    beside: Option<rayon::ThreadPool>,
}

impl Threads {
    /// Only the calling thread.
    #[must_use]
    pub fn single() -> Self {
        Self { beside: None }
    }

    /// `count` threads, the calling one included; 0 counts as 1.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn new(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        if count <= 1 {
            return Ok(Self::single());
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count - 1)
            .thread_name(|i| format!("baton-kernel-{i}"))
            .build()?;
        Ok(Self { beside: Some(pool) })
    }

    /// How many threads work together, the calling one included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.beside
            .as_ref()
            .map_or(1, |pool| pool.current_num_threads() + 1)
    }

    /// Calls `work(i)` once for every `i` below `tasks`, on at most `limit` threads.
    ///
    /// The caller takes part, so a pool that is slow to wake costs nothing but its help.
    pub(crate) fn for_each(&self, tasks: usize, limit: usize, work: impl Fn(usize) + Sync) {
        let workers = self.count().min(limit).min(tasks);
        let Some(pool) = self.beside.as_ref().filter(|_| workers > 1) else {
            (0..tasks).for_each(work);
            return;
        };
        let next = AtomicUsize::new(0);
        let drain = || {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                work(task);
            }
        };
        pool.in_place_scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|_| drain());
            }
            drain();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for count in [0, 1, 2, 5] {
            let threads = Threads::new(count).unwrap();
            assert_eq!(threads.count(), count.max(1));
            for tasks in [0, 1, 2, 97] {
                let seen: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.for_each(tasks, usize::MAX, |i| {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
        }
    }
}
