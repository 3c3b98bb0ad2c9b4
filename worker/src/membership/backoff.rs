//! How long to wait before dialling again.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// Doubles from 50 ms to 2 s, with up to half taken off at random so that workers do not dial in step.
#[derive(Clone, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Whether nothing has failed since the last success.
    pub(super) fn is_first(&self) -> bool {
        self.failures == 0
    }

    /// The wait after one more failure; `random` is 64 random bits.
    pub(super) fn failed(&mut self, random: u64) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(6)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let share = 0.5 + 0.5 * (random >> 11) as f64 / (1u64 << 53) as f64;
        full.mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_two_seconds_and_starts_over_after_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..8).map(|_| backoff.failed(u64::MAX).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(backoff.failed(0).as_millis(), 1000);
        backoff.succeeded();
        assert_eq!(backoff.failed(0).as_millis(), 25);
    }
}
