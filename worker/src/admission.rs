//! How many requests are open, and whether new ones are taken.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::{ServeError, metrics::WorkerMetrics};

/// The door of a worker. Clones are the same door.
#[derive(Clone, Debug)]
pub struct Admission {
    slots: Arc<Semaphore>,
    limit: u32,
    draining: Arc<watch::Sender<bool>>,
    metrics: WorkerMetrics,
}

/// One open request; dropping it makes room.
#[derive(Debug)]
pub struct Permit {
    metrics: WorkerMetrics,
    _slot: OwnedSemaphorePermit,
}

impl Admission {
    /// A door that lets `limit` requests be open together.
    #[must_use]
    pub fn new(limit: u32, metrics: WorkerMetrics) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(limit as usize)),
            limit,
            draining: Arc::new(watch::Sender::new(false)),
            metrics,
        }
    }

    /// Room for one request.
    ///
    /// # Errors
    /// When the worker drains, or has as many as it takes.
    pub fn enter(&self) -> Result<Permit, ServeError> {
        if *self.draining.borrow() {
            return Err(ServeError::draining());
        }
        let slot = Arc::clone(&self.slots)
            .try_acquire_owned()
            .map_err(|_| ServeError::AtLimit { limit: self.limit })?;
        self.metrics.open_requests.inc();
        Ok(Permit {
            metrics: self.metrics.clone(),
            _slot: slot,
        })
    }

    /// From now on nobody enters.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Whether nobody enters any more.
    #[must_use]
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Resolves when no request is open. Of use after [`Admission::drain`].
    pub async fn idle(&self) {
        // The semaphore is never closed; if it were, nobody could be inside.
        let _ = self.slots.acquire_many(self.limit).await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.metrics.open_requests.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refuses_at_the_limit_and_while_draining() {
        let metrics = WorkerMetrics::new(&prometheus::Registry::new()).expect("names are free");
        let door = Admission::new(1, metrics.clone());
        let inside = door.enter().expect("there is room");
        assert_eq!(door.enter().expect_err("full"), ServeError::AtLimit { limit: 1 });
        door.drain();
        assert_eq!(metrics.open_requests.get(), 1);
        drop(inside);
        door.idle().await;
        assert_eq!(door.enter().expect_err("closed"), ServeError::draining());
        assert_eq!(metrics.open_requests.get(), 0);
    }
}
