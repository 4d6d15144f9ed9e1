//! The places of posted buffers: how far each transfer is, and who is woken when it is over.
//!
//! It holds no memory and moves no bytes; `bulk_in` and `bulk_out` do.

use std::os::fd::{AsFd, BorrowedFd};

use crate::sync::{AtomicBool, AtomicU8, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};
use crate::wake::Wake;

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// Nobody uses the slot.
    Free,
    /// Posted; no byte has moved.
    Waiting,
    /// The background thread moves bytes.
    Moving,
    /// Every byte has moved and was verified.
    Done,
    /// It ended before that: cancelled, or the ring's fate. The thread has left the memory.
    Ended,
}

/// One slot's own wake and flags.
#[derive(Debug)]
pub(crate) struct Slot {
    step: AtomicU8,
    /// Which use of the slot this is, so that nobody asks for another's.
    turn: AtomicU64,
    /// Its owner wants the memory back.
    cancelled: AtomicBool,
    over: Wake,
}

impl Slot {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            step: AtomicU8::new(Step::Free as u8),
            turn: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            over: Wake::new()?,
        })
    }

    /// How far it is; what was written before `Done` was published is visible after it was read.
    pub(crate) fn step(&self) -> Step {
        match self.step.load(Ordering::Acquire) {
            0 => Step::Free,
            1 => Step::Waiting,
            2 => Step::Moving,
            3 => Step::Done,
            _ => Step::Ended,
        }
    }

    /// How far the transfer of `turn` is; `Free` where the slot is used by another.
    pub(crate) fn step_of(&self, turn: u64) -> Step {
        let step = self.step();
        if self.turn.load(Ordering::Acquire) == turn {
            step
        } else {
            Step::Free
        }
    }

    /// A buffer is posted: the number of this use.
    pub(crate) fn begin(&self) -> u64 {
        self.over.clear();
        self.cancelled.store(false, Ordering::Release);
        let turn = self.turn.fetch_add(1, Ordering::AcqRel) + 1;
        self.step.store(Step::Waiting as u8, Ordering::Release);
        turn
    }

    /// The thread has begun, or nobody uses the slot any more.
    pub(crate) fn enter(&self, step: Step) {
        self.step.store(step as u8, Ordering::Release);
    }

    /// The transfer is over, one way or the other.
    pub(crate) fn finish(&self, step: Step) {
        self.step.store(step as u8, Ordering::Release);
        self.over.set();
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

impl AsFd for Slot {
    /// Readable once the transfer is over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.over.as_fd()
    }
}

/// The descriptor of `Ring::fileno`: readable while an end has not been told to anyone.
#[derive(Debug)]
pub(crate) struct Completions {
    untold: Mutex<Untold>,
    wake: Wake,
}

#[derive(Debug, Default)]
struct Untold {
    /// Below zero while somebody has taken what is counted a moment later.
    count: i64,
    /// The ring has its fate: readable for ever.
    is_final: bool,
}

impl Completions {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            untold: Mutex::new(Untold::default()),
            wake: Wake::new()?,
        })
    }

    /// A transfer is over.
    pub(crate) fn add(&self) {
        let mut untold = self.lock();
        untold.count += 1;
        if untold.count == 1 {
            self.wake.set();
        }
    }

    /// Somebody was told of one.
    pub(crate) fn take(&self) {
        let mut untold = self.lock();
        untold.count -= 1;
        if untold.count == 0 && !untold.is_final {
            self.wake.clear();
        }
    }

    /// There is nothing more to wait for.
    pub(crate) fn end(&self) {
        self.lock().is_final = true;
        self.wake.set();
    }

    fn lock(&self) -> MutexGuard<'_, Untold> {
        // Nothing panics while it holds this lock.
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
