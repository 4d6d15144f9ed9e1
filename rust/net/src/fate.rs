//! The first failure of the ring: kept once, reported by every call, and it ends every wait.
//!
//! It does not tell other ranks; the control thread does, and says here when that is done.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::deadline::Deadline;
use crate::error::LinkError;
use crate::socket::{READ, poll};
use crate::wake::Wake;

/// A latch that takes the first cause and wakes all who wait.
#[derive(Debug)]
pub(crate) struct Fate {
    cause: OnceLock<LinkError>,
    wake: Wake,
    told: Wake,
    is_told: AtomicBool,
}

impl Fate {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            cause: OnceLock::new(),
            wake: Wake::new()?,
            told: Wake::new()?,
            is_told: AtomicBool::new(false),
        })
    }

    /// Keep `cause` if it is the first, and wake every wait; returns the first in any case.
    pub(crate) fn set(&self, cause: LinkError) -> &LinkError {
        let first = self.cause.get_or_init(|| cause);
        self.wake.set();
        first
    }

    /// The first cause, once there is one.
    pub(crate) fn cause(&self) -> Option<&LinkError> {
        self.cause.get()
    }

    /// The first cause as an error, for the start of a call.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        self.cause.get().map_or(Ok(()), |cause| Err(cause.clone()))
    }

    /// Wait for another's cause, then keep `suspicion` if none came.
    ///
    /// A rank that sees a neighbour's link close cannot tell who failed; the lead mostly can.
    pub(crate) fn settle(&self, suspicion: LinkError, patience: Deadline) -> LinkError {
        while self.cause.get().is_none() && !patience.is_over() {
            let mut fds = [rustix::event::PollFd::new(&self.wake, READ)];
            if poll(&mut fds, patience.remaining()).is_err() {
                break;
            }
        }
        self.set(suspicion).clone()
    }

    /// Every rank that can be told has been told.
    pub(crate) fn mark_told(&self) {
        self.is_told.store(true, Ordering::Release);
        self.told.set();
    }

    /// Wait until the others have been told.
    pub(crate) fn wait_told(&self, deadline: Deadline) {
        while !self.is_told.load(Ordering::Acquire) && !deadline.is_over() {
            let mut fds = [rustix::event::PollFd::new(&self.told, READ)];
            if poll(&mut fds, deadline.slice()).is_err() {
                break;
            }
        }
    }
}

impl AsFd for Fate {
    /// Readable for ever once a cause is kept.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
