//! How the calling thread waits for a socket: spinning, asleep, or first one and then the other,
//! until the fate, a signal or a deadline.
//!
//! It moves no bytes, and when spinning pays is judged in `adapt`.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::adapt::{End, Outcome, Reason, Way};
use crate::deadline::{Deadline, SLICE};
use crate::error::LinkError;
use crate::fate::Fate;
use crate::socket::{READ, is_ready, poll};
use crate::wake::Wake;

/// A spinner looks at the clock once in so many turns: a look takes as long as a tenth of a turn.
const TURNS_A_LOOK: u32 = 8;

/// Looks for a reason of the caller's to stop waiting; asked between slices, never inside one.
pub trait Interrupt {
    /// Whether the wait should end now.
    fn is_pending(&self) -> bool;
}

/// An interrupt that never comes, for threads that get no signals.
#[derive(Clone, Copy, Debug)]
pub struct Uninterrupted;

impl Interrupt for Uninterrupted {
    fn is_pending(&self) -> bool {
        false
    }
}

/// What a wait does with the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Sleep in poll.
    Block,
    /// Try again and again.
    Spin,
    /// Sleep through most of a wait that repeats and spin through its end, where that pays.
    Adaptive,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Adaptive, Self::Spin, Self::Block];

    /// The strategy's name in settings and figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Spin => "spin",
            Self::Adaptive => "adaptive",
        }
    }
}

/// One call's way of waiting.
pub(crate) struct Wait<'a> {
    pub(crate) fate: &'a Fate,
    pub(crate) interrupt: &'a dyn Interrupt,
    pub(crate) strategy: Strategy,
    nudge: Option<&'a Wake>,
    way: Way,
    /// When the first try found nothing.
    start: Option<Instant>,
    next_look: Option<Instant>,
    spent: Spent,
    spinning_since: Option<Instant>,
    turns: u32,
    end: Option<End>,
    overslept: Option<Duration>,
}

/// What waiting took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) slept: Duration,
    pub(crate) spun: Duration,
}

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    Ready,
    Moment,
    Over,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(fate: &'a Fate, interrupt: &'a dyn Interrupt, strategy: Strategy) -> Self {
        Self {
            fate,
            interrupt,
            strategy,
            nudge: None,
            way: Way::Sleep(Reason::Idle),
            start: None,
            next_look: None,
            spent: Spent::default(),
            spinning_since: None,
            turns: 0,
            end: None,
            overslept: None,
        }
    }

    /// Also return early when `nudge` is set, which is cleared; the caller looks for what it means.
    pub(crate) fn nudged_by(mut self, nudge: &'a Wake) -> Self {
        self.nudge = Some(nudge);
        self
    }

    /// Spend the next wait this way; other strategies than `Adaptive` have their own.
    pub(crate) fn spend(&mut self, way: Way) {
        self.way = way;
        self.start = None;
        self.end = None;
        self.overslept = None;
    }

    /// Return when it may be worth trying `fd` again.
    ///
    /// Errors: the ring's fate, or `interrupted`.
    pub(crate) fn again(&mut self, fd: BorrowedFd<'_>, flags: PollFlags) -> Result<(), LinkError> {
        self.until(fd, flags, None).map(|_| ())
    }

    /// As [`Self::again`]; false when the deadline has passed.
    pub(crate) fn until(
        &mut self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        deadline: Option<Deadline>,
    ) -> Result<bool, LinkError> {
        if self.spinning_since.is_some() {
            self.turns += 1;
            if self.turns < TURNS_A_LOOK {
                self.fate.check()?;
                std::hint::spin_loop();
                return Ok(true);
            }
            self.turns = 0;
        }
        let now = Instant::now();
        let start = *self.start.get_or_insert(now);
        let (from, until) = match (self.strategy, self.way) {
            (Strategy::Spin, _) => return self.spin_once(now, deadline),
            (Strategy::Adaptive, Way::Spin { from, until }) => (start + from, start + until),
            _ => {
                self.end = Some(End::Asleep);
                let woken = self.sleep(fd, flags, deadline, None)?;
                return Ok(woken != Woken::Over);
            }
        };
        if now < from {
            let woken = self.sleep(fd, flags, deadline, Some(from))?;
            self.end = Some(End::Asleep);
            if woken == Woken::Moment {
                self.overslept = Some(Instant::now().saturating_duration_since(from));
            }
            return Ok(woken != Woken::Over);
        }
        if now < until {
            self.end = Some(End::Spinning);
            return self.spin_once(now, deadline);
        }
        if self.end == Some(End::Spinning) {
            self.end = Some(End::InVain);
        }
        Ok(self.sleep(fd, flags, deadline, None)? != Woken::Over)
    }

    /// How the wait was, where there was one; what was waited for has just come.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        let (start, end) = self.start.zip(self.end)?;
        Some(Outcome {
            waited: start.elapsed(),
            end,
            overslept: self.overslept,
        })
    }

    /// What was spent waiting since the last call of this function.
    pub(crate) fn take_spent(&mut self) -> Spent {
        self.stop_spinning();
        std::mem::take(&mut self.spent)
    }

    fn stop_spinning(&mut self) {
        if let Some(since) = self.spinning_since.take() {
            self.spent.spun += since.elapsed();
        }
    }

    fn spin_once(&mut self, now: Instant, deadline: Option<Deadline>) -> Result<bool, LinkError> {
        self.fate.check()?;
        std::hint::spin_loop();
        self.spinning_since.get_or_insert(now);
        let next_look = *self.next_look.get_or_insert(now + SLICE);
        if now >= next_look {
            self.next_look = Some(now + SLICE);
            self.look()?;
            return Ok(!deadline.is_some_and(|limit| limit.is_over()));
        }
        Ok(true)
    }

    fn sleep(
        &mut self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        deadline: Option<Deadline>,
        moment: Option<Instant>,
    ) -> Result<Woken, LinkError> {
        self.stop_spinning();
        let start = Instant::now();
        let woken = self.sleep_in_slices(fd, flags, deadline, moment);
        self.spent.slept += start.elapsed();
        woken
    }

    fn sleep_in_slices(
        &self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        deadline: Option<Deadline>,
        moment: Option<Instant>,
    ) -> Result<Woken, LinkError> {
        loop {
            let fate = self.fate.as_fd();
            let mut fds = [
                PollFd::from_borrowed_fd(fd, flags),
                PollFd::from_borrowed_fd(fate, READ),
                PollFd::from_borrowed_fd(self.nudge.map_or(fate, AsFd::as_fd), READ),
            ];
            let mut slice = deadline.map_or(SLICE, |limit| limit.slice());
            if let Some(moment) = moment {
                slice = slice.min(moment.saturating_duration_since(Instant::now()));
            }
            // A poll that fails for want of memory is tried again after the signal check.
            let polled = poll(&mut fds, slice);
            if is_ready(&fds[1]) {
                self.fate.check()?;
            }
            if polled.is_ok() && is_ready(&fds[0]) {
                return Ok(Woken::Ready);
            }
            if let Some(nudge) = self.nudge.filter(|_| is_ready(&fds[2])) {
                nudge.clear();
                return self.look().map(|()| Woken::Ready);
            }
            if deadline.is_some_and(|limit| limit.is_over()) {
                return Ok(Woken::Over);
            }
            if moment.is_some_and(|moment| Instant::now() >= moment) {
                return Ok(Woken::Moment);
            }
            self.look()?;
        }
    }

    fn look(&self) -> Result<(), LinkError> {
        if self.interrupt.is_pending() {
            Err(LinkError::interrupted())
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
