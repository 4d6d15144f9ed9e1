//! What this rank's engine does just now, as keep-alives carry it and error texts say it.
//!
//! Other ranks' activity is kept with their links, not here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stagelink_proto::progress::Phase;

/// A phase with its facts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Doing {
    pub(crate) phase: Phase,
    pub(crate) round: u64,
    pub(crate) counter: u64,
    pub(crate) busy_limit: Duration,
    pub(crate) done: u64,
}

/// The current phase, written by the engine's thread and read by the control thread.
#[derive(Debug)]
pub(crate) struct Activity {
    doing: Mutex<Doing>,
}

impl Activity {
    pub(crate) fn new() -> Self {
        let doing = Doing {
            phase: Phase::Booting,
            round: 0,
            counter: 0,
            busy_limit: Duration::ZERO,
            done: 0,
        };
        Self {
            doing: Mutex::new(doing),
        }
    }

    pub(crate) fn now(&self) -> Doing {
        *self.lock()
    }

    /// Enter a phase and move the counter; true when keep-alives should tell it at once.
    pub(crate) fn enter(&self, phase: Phase, round: u64, busy_limit: Duration, done: u64) -> bool {
        let mut doing = self.lock();
        let is_news = (doing.phase == Phase::Loading) != (phase == Phase::Loading);
        let counter = doing.counter + 1;
        *doing = Doing {
            phase,
            round,
            counter,
            busy_limit,
            done,
        };
        is_news
    }

    fn lock(&self) -> MutexGuard<'_, Doing> {
        // Nothing panics while it holds this lock; a plain copy is never half written.
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `computing round 812`: a phase for a person.
pub(crate) fn describe(phase: Phase, round: u64) -> String {
    let what = match phase {
        Phase::Booting => "booting",
        Phase::Loading => "loading",
        Phase::Warming => "warming up",
        Phase::Idle => "idle",
        Phase::Receiving if round != 0 => return format!("receiving rows of round {round}"),
        Phase::Sending if round != 0 => return format!("sending rows of round {round}"),
        Phase::Receiving => "receiving",
        Phase::Computing => "computing",
        Phase::Sending => "sending",
    };
    match (phase, round) {
        (Phase::Booting | Phase::Loading | Phase::Warming, _) | (_, 0) => what.to_owned(),
        (Phase::Idle, round) => format!("idle after round {round}"),
        (_, round) => format!("{what} round {round}"),
    }
}
