//! How the calling thread waits for a socket: spinning or asleep, until the fate, a signal or a
//! deadline.
//!
//! It moves no bytes.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::deadline::{Deadline, SLICE};
use crate::error::LinkError;
use crate::fate::Fate;
use crate::socket::{READ, is_ready, poll};

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
}

/// One call's way of waiting.
pub(crate) struct Wait<'a> {
    pub(crate) fate: &'a Fate,
    pub(crate) interrupt: &'a dyn Interrupt,
    pub(crate) strategy: Strategy,
    next_look: Instant,
    waited: Duration,
    spinning_since: Option<Instant>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(fate: &'a Fate, interrupt: &'a dyn Interrupt, strategy: Strategy) -> Self {
        Self {
            fate,
            interrupt,
            strategy,
            next_look: Instant::now() + SLICE,
            waited: Duration::ZERO,
            spinning_since: None,
        }
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
        if self.strategy == Strategy::Spin {
            return self.spin_once(deadline);
        }
        let start = Instant::now();
        let result = self.sleep(fd, flags, deadline);
        self.waited += start.elapsed();
        result
    }

    /// Seconds spent waiting since the last call of this function.
    pub(crate) fn take_seconds_waited(&mut self) -> f64 {
        let spun = self
            .spinning_since
            .take()
            .map_or(Duration::ZERO, |since| since.elapsed());
        (std::mem::take(&mut self.waited) + spun).as_secs_f64()
    }

    fn spin_once(&mut self, deadline: Option<Deadline>) -> Result<bool, LinkError> {
        self.fate.check()?;
        std::hint::spin_loop();
        let now = Instant::now();
        self.spinning_since.get_or_insert(now);
        if now >= self.next_look {
            self.next_look = now + SLICE;
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
    ) -> Result<bool, LinkError> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(fd, flags),
                PollFd::from_borrowed_fd(self.fate.as_fd(), READ),
            ];
            let slice = deadline.map_or(SLICE, |limit| limit.slice());
            // A poll that fails for want of memory is tried again after the signal check.
            let polled = poll(&mut fds, slice);
            if is_ready(&fds[1]) {
                self.fate.check()?;
            }
            if polled.is_ok() && is_ready(&fds[0]) {
                return Ok(true);
            }
            if deadline.is_some_and(|limit| limit.is_over()) {
                return Ok(false);
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
