//! Encoding runs beside the async threads, on as many threads as there are cores.

use std::sync::Arc;

use tokio::{sync::Semaphore, task};

use super::TextError;

/// Bounds how many texts are encoded at once; the rest wait their turn in order.
#[derive(Clone, Debug)]
pub struct TextPool {
    permits: Arc<Semaphore>,
}

impl TextPool {
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(threads.max(1))),
        }
    }

    /// Runs `work` off the async threads.
    ///
    /// # Errors
    /// What `work` returns; [`TextError::Tokenizer`] if it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, TextError> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|error| TextError::Tokenizer(error.to_string()))?;
        task::spawn_blocking(move || {
            // Held by the work, not by the waiter, who may give up.
            let _permit = permit;
            work()
        })
        .await
        .map_err(|error| TextError::Tokenizer(error.to_string()))?
    }
}
