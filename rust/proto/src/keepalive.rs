//! When a keep-alive is due, who was heard, when the ring is dead (docs/protocol.md 6.5, 8).
//! It reads no clock: every time is a `Duration` since a start of the caller's choice.

use core::time::Duration;

use crate::{
    error::{ProtocolError, Refusal},
    limits,
    open::Open,
    progress::{Phase, Progress},
};

/// The two numbers that govern liveness.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timers {
    /// The keep-alive interval.
    pub interval: Duration,
    /// Silent intervals that end the ring.
    pub silent_intervals: u32,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            interval: limits::KEEPALIVE_INTERVAL,
            silent_intervals: limits::SILENT_INTERVALS,
        }
    }
}

impl Timers {
    /// The timers that the lead's open message sets.
    #[must_use]
    pub const fn of_open(open: &Open) -> Self {
        Self {
            interval: open.interval(),
            silent_intervals: open.silent_intervals(),
        }
    }

    /// How long a peer may be silent.
    #[must_use]
    pub const fn silence_limit(&self) -> Duration {
        self.interval.saturating_mul(self.silent_intervals)
    }
}

/// When this side must be heard again: a plan from the lead, a progress from a follower.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeepAlive {
    interval: Duration,
    sent: Duration,
}

impl KeepAlive {
    /// The first interval begins `now`.
    #[must_use]
    pub const fn new(timers: &Timers, now: Duration) -> Self {
        Self {
            interval: timers.interval,
            sent: now,
        }
    }

    /// A plan (lead) or a progress (follower) left.
    pub fn sent(&mut self, now: Duration) {
        self.sent = self.sent.max(now);
    }

    /// When the next one is due.
    #[must_use]
    pub const fn due_at(&self) -> Duration {
        self.sent.saturating_add(self.interval)
    }

    /// True once it is due.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.due_at()
    }
}

/// Whether a peer is alive: any frame on the control link counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hearing {
    limit: Duration,
    heard: Duration,
}

impl Hearing {
    /// The peer counts as heard `now`.
    #[must_use]
    pub const fn new(timers: &Timers, now: Duration) -> Self {
        Self {
            limit: timers.silence_limit(),
            heard: now,
        }
    }

    /// A frame came.
    pub fn heard(&mut self, now: Duration) {
        self.heard = self.heard.max(now);
    }

    /// When the peer counts as dead.
    #[must_use]
    pub const fn silent_at(&self) -> Duration {
        self.heard.saturating_add(self.limit)
    }

    /// Errors: `silent`, once no frame was heard for the limit.
    pub fn check(&self, now: Duration) -> Result<(), ProtocolError> {
        if now < self.silent_at() {
            return Ok(());
        }
        let heard = now.saturating_sub(self.heard);
        let (limit, heard) = (Millis(self.limit).value(), Millis(heard).value());
        Err(Refusal::Silent.outside("silent milliseconds", 0_u32, limit, heard))
    }
}

/// Whether a peer's engine gets on: its counter moves, or its phase is within its busy limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Watch {
    phase: Option<Phase>,
    counter: u64,
    since: Duration,
    limit: Option<Duration>,
}

impl Watch {
    /// Nothing was reported yet.
    #[must_use]
    pub const fn new(now: Duration) -> Self {
        Self {
            phase: None,
            counter: 0,
            since: now,
            limit: None,
        }
    }

    /// Takes a report. Errors: `progress_backwards`; nothing has changed then.
    pub fn report(&mut self, progress: &Progress, now: Duration) -> Result<(), ProtocolError> {
        if progress.counter < self.counter {
            let (least, got) = (self.counter, progress.counter);
            return Err(Refusal::ProgressBackwards.outside("counter", least, u64::MAX, got));
        }
        if self.phase != Some(progress.phase) || self.counter != progress.counter {
            self.since = now;
        }
        self.phase = Some(progress.phase);
        self.counter = progress.counter;
        self.limit = progress.busy_limit();
        Ok(())
    }

    /// What the peer was last seen doing.
    #[must_use]
    pub const fn phase(&self) -> Option<Phase> {
        self.phase
    }

    /// Since when phase and counter stand still.
    #[must_use]
    pub const fn since(&self) -> Duration {
        self.since
    }

    /// When the peer counts as stuck; `None` without a limit.
    #[must_use]
    pub fn stalled_at(&self) -> Option<Duration> {
        self.limit.map(|limit| self.since.saturating_add(limit))
    }

    /// Errors: `stalled`, once phase and counter stood still for longer than the busy limit.
    pub fn check(&self, now: Duration) -> Result<(), ProtocolError> {
        match (self.stalled_at(), self.limit) {
            (Some(at), Some(limit)) if now > at => {
                let stood = Millis(now.saturating_sub(self.since)).value();
                let limit = Millis(limit).value();
                Err(Refusal::Stalled.outside("busy milliseconds", 0_u32, limit, stood))
            }
            _ => Ok(()),
        }
    }
}

/// A duration for an error's text.
struct Millis(Duration);

impl Millis {
    fn value(&self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}
