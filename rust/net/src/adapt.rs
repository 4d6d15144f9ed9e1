//! Whether the next wait of a kind is worth spinning for, learned from how long its like took.
//!
//! It reads no clock and makes no call: durations go in, a decision comes out.

use std::time::Duration;

/// Waits of a kind that are remembered; few, so that a new length is learned within a few rounds.
const REMEMBERED: usize = 8;
/// How many of them must lie close together to be a habit; the others may be accidents.
const AGREEING: usize = REMEMBERED - REMEMBERED / 4;
/// Fewer waits than this say nothing.
const LEARNED_FROM: usize = 4;
/// What a spin lasts beyond the habit on each side: one part in so many of the wait, less what a
/// short one does not need, within bounds. Waits differ more the longer they are, and a core that
/// has rested for long answers as one that never did only after it has run for a while.
const GUARD_SHARE: u32 = 5;
const GUARD_LESS: Duration = Duration::from_micros(100);
const GUARD_MIN: Duration = Duration::from_micros(30);
const GUARD_MAX: Duration = Duration::from_millis(2);
/// A wait this short is over before a sleeper would be back, so it is spun through.
const SHORT: Duration = Duration::from_micros(200);
/// A sleep shorter than this is not begun.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// What waking up is worth is lost in a wait longer than this.
const LONG: Duration = Duration::from_millis(200);
/// A spin may take one part in so many of its wait.
const SPUN_SHARE: u32 = 4;
/// How late a sleeper is back, until that has been seen.
const OVERSLEPT: Duration = Duration::from_micros(80);
/// A sleeper that is back later than this was not late but kept away.
const OVERSLEPT_MAX: Duration = Duration::from_millis(1);
/// Spins that are looked back upon, and how many of them must have been made to judge.
const JUDGED_MAX: u32 = 16;
const JUDGED_MIN: u32 = 8;
/// Waits without a spin after most spins were in vain; doubled each time, up to the second.
const REST_FIRST: u32 = 64;
const REST_MAX: u32 = 4_096;

/// Why a wait is slept through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing is expected, so nobody knows for how long.
    Idle,
    /// Too few waits of this kind have been seen.
    Learning,
    /// The waits differ by more than a spin may take.
    Unsteady,
    /// Most of the last spins ended before the rows came.
    Wasted,
    /// The waits are so long that waking up does not count.
    Long,
    /// Others want the processor.
    Crowded,
    /// There is only one processor, and the other end may need it.
    OneCore,
}

impl Reason {
    /// The reason's stable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Learning => "learning",
            Self::Unsteady => "unsteady",
            Self::Wasted => "wasted",
            Self::Long => "long",
            Self::Crowded => "crowded",
            Self::OneCore => "one_core",
        }
    }
}

/// How a wait is to be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Asleep.
    Sleep(Reason),
    /// Asleep for the first part, spinning between the two moments, and asleep again after them.
    Spin {
        /// Since the start of the wait; zero for no sleep.
        from: Duration,
        /// Since the start of the wait.
        until: Duration,
    },
}

/// What a wait was doing when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Spinning: nobody had to be woken.
    Spinning,
    /// Asleep, and not because a spin was over.
    Asleep,
    /// Asleep after a spin in vain.
    InVain,
}

/// A wait that ended with what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) waited: Duration,
    pub(crate) end: End,
    /// How much later than asked the sleep before the spin ended.
    pub(crate) overslept: Option<Duration>,
}

/// What one kind of wait has taught.
#[derive(Clone, Debug, Default)]
pub(crate) struct Habit {
    waits: Recent,
    overslept: Recent,
    /// One bit a spin, the latest lowest: set where it was in vain.
    in_vain: u32,
    judged: u32,
    rest: u32,
    next_rest: u32,
}

impl Habit {
    /// How the next wait of this kind should be spent.
    pub(crate) fn choose(&self) -> Way {
        if self.rest > 0 {
            return Way::Sleep(Reason::Wasted);
        }
        let Some((low, high)) = self.waits.habit() else {
            return Way::Sleep(Reason::Learning);
        };
        if high <= SHORT {
            let from = Duration::ZERO;
            return Way::Spin {
                from,
                until: SHORT * 2,
            };
        }
        if high > LONG {
            return Way::Sleep(Reason::Long);
        }
        let expected = (low + high) / 2;
        let most = expected / SPUN_SHARE;
        let half = expected.saturating_sub(low);
        if half + GUARD_MIN > most {
            return Way::Sleep(Reason::Unsteady);
        }
        let guard = (expected / GUARD_SHARE).saturating_sub(GUARD_LESS);
        let guard = guard.clamp(GUARD_MIN, GUARD_MAX);
        // Early enough for a late sleeper, but not so early that a usual one spins too long.
        let (usual, late) = self
            .overslept
            .usual_and_late()
            .unwrap_or((OVERSLEPT, OVERSLEPT));
        let careful = low.saturating_sub(guard + late);
        let thrifty = expected.saturating_sub(most + usual);
        let from = careful.max(thrifty);
        let from = if from < SLEEP_MIN {
            Duration::ZERO
        } else {
            from
        };
        let until = high + high.saturating_sub(low) + guard;
        Way::Spin { from, until }
    }

    /// What the waits of this kind are expected to last; zero while nothing is known.
    pub(crate) fn expected(&self) -> Duration {
        self.waits
            .habit()
            .map_or(Duration::ZERO, |(low, high)| (low + high) / 2)
    }

    /// Take in how a wait was.
    pub(crate) fn learn(&mut self, outcome: Outcome) {
        self.waits.push(outcome.waited);
        if let Some(late) = outcome.overslept {
            self.overslept.push(late.min(OVERSLEPT_MAX));
        }
        match outcome.end {
            End::Spinning => self.judge(0),
            End::InVain => self.judge(1),
            End::Asleep => self.rest = self.rest.saturating_sub(1),
        }
    }

    fn judge(&mut self, in_vain: u32) {
        self.in_vain = (self.in_vain << 1 | in_vain) & ((1 << JUDGED_MAX) - 1);
        self.judged = (self.judged + 1).min(JUDGED_MAX);
        let lost = self.in_vain.count_ones();
        if self.judged >= JUDGED_MIN && lost * 2 > self.judged {
            self.next_rest = (self.next_rest * 2).clamp(REST_FIRST, REST_MAX);
            self.rest = self.next_rest;
            (self.in_vain, self.judged) = (0, 0);
        } else if self.judged == JUDGED_MAX && lost * 4 <= self.judged {
            self.next_rest = 0;
        }
    }
}

/// The last few durations of one kind.
#[derive(Clone, Debug, Default)]
struct Recent {
    all: [Duration; REMEMBERED],
    count: usize,
    next: usize,
}

impl Recent {
    fn push(&mut self, one: Duration) {
        self.all[self.next] = one;
        self.next = (self.next + 1) % REMEMBERED;
        self.count = (self.count + 1).min(REMEMBERED);
    }

    fn sorted(&self) -> Option<[Duration; REMEMBERED]> {
        if self.count < LEARNED_FROM {
            return None;
        }
        let mut all = self.all;
        all[..self.count].sort_unstable();
        Some(all)
    }

    /// The shortest span that holds most of them: the part that agrees, wherever the others lie.
    fn habit(&self) -> Option<(Duration, Duration)> {
        let all = self.sorted()?;
        // Half of the first few, so that a first wait that is no habit does not count.
        let most = (self.count * AGREEING).div_ceil(REMEMBERED);
        all[..self.count]
            .windows(most)
            .map(|span| (span[0], span[most - 1]))
            .min_by_key(|(low, high)| high.saturating_sub(*low))
    }

    /// The median, and what only the latest exceeds.
    fn usual_and_late(&self) -> Option<(Duration, Duration)> {
        let all = self.sorted()?;
        Some((all[self.count / 2], all[self.count - 2]))
    }
}

#[cfg(test)]
mod tests;
