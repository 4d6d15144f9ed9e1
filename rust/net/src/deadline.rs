//! A budget of time that only shrinks, and the clock that all judgements of this crate use.
//!
//! It is the only file that reads the clock; it waits for nothing.

use std::time::{Duration, Instant};

/// The longest that any wait goes on without looking at the fate and at pending signals.
pub const SLICE: Duration = Duration::from_millis(50);

/// A moment after which something is late; it never moves.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// The moment `limit` from now.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        let now = Instant::now();
        let limit = limit.min(Duration::from_secs(86_400 * 365));
        Self {
            at: now.checked_add(limit).unwrap_or(now),
            limit,
        }
    }

    /// What is left, zero when it is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Whether the moment has passed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The whole limit in seconds, for error texts.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.limit.as_secs_f64()
    }

    /// The earlier of this deadline and one `limit` from now.
    #[must_use]
    pub fn or_sooner(&self, limit: Duration) -> Self {
        let other = Self::after(limit);
        if other.at < self.at { other } else { *self }
    }

    /// How long to sleep next: what is left, at most one slice.
    #[must_use]
    pub fn slice(&self) -> Duration {
        self.remaining().min(SLICE)
    }
}

/// Time since an arbitrary start, as the protocol's state machines want it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_of_nothing_is_over_at_once() {
        assert!(Deadline::after(Duration::ZERO).is_over());
    }

    #[test]
    fn a_slice_is_never_longer_than_what_is_left() {
        let deadline = Deadline::after(Duration::from_millis(10));
        assert!(deadline.slice() <= Duration::from_millis(10));
        assert_eq!(Deadline::after(Duration::from_secs(9)).slice(), SLICE);
    }
}
