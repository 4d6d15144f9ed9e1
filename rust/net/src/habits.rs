//! What a link's waits have taught, kind by kind, and what was spent on them.
//!
//! It judges nothing (`adapt`, `crowd`) and waits for nothing (`wait`).

use std::time::Duration;

use crate::adapt::{End, Habit, Reason, Way};
use crate::crowd::{Crowd, queued};
use crate::deadline::Clock;
use crate::wait::{Spent, Strategy, Wait};

/// Kinds of waits: for a power of two rows, and all above in the last.
const KINDS: usize = 16;
/// In place of a count of rows: the wait for a credit.
pub(crate) const CREDIT: u32 = 0;
/// The rest of a frame that has begun is worth spinning for so long.
const REST_OF_FRAME: Duration = Duration::from_micros(200);

/// What waiting on one link took, and what was last decided about it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WaitFigures {
    /// Seconds asleep.
    pub seconds_slept: f64,
    /// Seconds of spinning.
    pub seconds_spun: f64,
    /// Adaptive waits that ended in their spin.
    pub spins_won: u64,
    /// Adaptive waits whose spin was over before the end.
    pub spins_in_vain: u64,
    /// Adaptive waits that ended asleep.
    pub sleeps: u64,
    /// How long the last kind of wait is expected to take; zero while nothing is known.
    pub expected_seconds: f64,
    /// How much earlier than that the last spin was to begin; zero for none.
    pub margin_seconds: f64,
    /// Why the last wait was slept through; `None` where it was not.
    pub asleep: Option<Reason>,
}

impl WaitFigures {
    /// Count what was spent.
    pub(crate) fn add(&mut self, spent: Spent) {
        self.seconds_slept += spent.slept.as_secs_f64();
        self.seconds_spun += spent.spun.as_secs_f64();
    }
}

/// One link's habits.
#[derive(Debug)]
pub(crate) struct Habits {
    kinds: [Habit; KINDS],
    crowd: Crowd,
    clock: Clock,
    is_one_core: bool,
    /// All but the seconds.
    figures: WaitFigures,
}

impl Habits {
    pub(crate) fn new() -> Self {
        Self {
            kinds: std::array::from_fn(|_| Habit::default()),
            crowd: Crowd::default(),
            clock: Clock::start(),
            is_one_core: cores() == Some(1),
            figures: WaitFigures::default(),
        }
    }

    /// Put what was decided, and how that went, beside what it took.
    pub(crate) fn tell(&self, figures: &mut WaitFigures) {
        *figures = WaitFigures {
            seconds_slept: figures.seconds_slept,
            seconds_spun: figures.seconds_spun,
            ..self.figures
        };
    }

    /// Decide how the wait for so many rows is spent.
    pub(crate) fn begin(&mut self, rows: u32, wait: &mut Wait<'_>) {
        if wait.strategy != Strategy::Adaptive {
            return;
        }
        let now = self.clock.now();
        if self.crowd.is_due(now) {
            self.crowd.look(now, queued());
        }
        let habit = &self.kinds[kind(rows)];
        let way = if self.is_one_core {
            Way::Sleep(Reason::OneCore)
        } else if self.crowd.is_crowded(now) {
            Way::Sleep(Reason::Crowded)
        } else {
            habit.choose()
        };
        let expected = habit.expected();
        let figures = &mut self.figures;
        figures.expected_seconds = expected.as_secs_f64();
        (figures.asleep, figures.margin_seconds) = match way {
            Way::Sleep(reason) => (Some(reason), 0.0),
            Way::Spin { from, .. } => (None, expected.saturating_sub(from).as_secs_f64()),
        };
        wait.spend(way);
    }

    /// The first bytes have come: learn from the wait, and decide how the rest is waited for.
    pub(crate) fn end(&mut self, rows: u32, wait: &mut Wait<'_>) {
        if wait.strategy != Strategy::Adaptive {
            return;
        }
        if let Some(outcome) = wait.outcome() {
            self.kinds[kind(rows)].learn(outcome);
            match outcome.end {
                End::Spinning => self.figures.spins_won += 1,
                End::InVain => self.figures.spins_in_vain += 1,
                End::Asleep => self.figures.sleeps += 1,
            }
        }
        wait.spend(match self.figures.asleep {
            Some(reason) => Way::Sleep(reason),
            None => Way::Spin {
                from: Duration::ZERO,
                until: REST_OF_FRAME,
            },
        });
    }
}

/// Waits for as many rows, within a factor of two, are of one kind.
fn kind(rows: u32) -> usize {
    let bits = u32::BITS - rows.leading_zeros();
    (bits as usize).min(KINDS - 1)
}

/// Processors of the machine, whichever of them this process may use.
fn cores() -> Option<u64> {
    // A stage that is pinned to one processor has neighbours on others.
    #[cfg(target_os = "linux")]
    let count = std::fs::read_to_string("/proc/stat").ok().map(|text| {
        let lines = text.lines().skip(1);
        lines.take_while(|line| line.starts_with("cpu")).count() as u64
    });
    #[cfg(not(target_os = "linux"))]
    let count = std::thread::available_parallelism()
        .ok()
        .map(|count| count.get() as u64);
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_about_as_many_rows_are_of_one_kind() {
        assert_eq!(kind(0), 0);
        assert_eq!(kind(1), 1);
        assert_eq!(kind(2), kind(3));
        assert_ne!(kind(3), kind(4));
        assert_eq!(kind(u32::MAX), KINDS - 1);
    }

    #[test]
    fn the_machine_has_at_least_one_processor() {
        assert!(cores().is_none_or(|count| count >= 1));
    }
}
