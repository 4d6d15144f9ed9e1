//! Wake descriptors and poll, as flags under one lock with one condition.
//! No time passes: a poll ends when a descriptor is set, never by its timeout.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};

loom::lazy_static! {
    static ref FLAGS: Mutex<Vec<bool>> = Mutex::new(Vec::new());
    static ref CHANGED: Condvar = Condvar::new();
}

/// The first number that stands for a flag; no descriptor of the process is touched.
const FIRST: RawFd = 1 << 20;

#[derive(Debug)]
pub struct Wake(usize);

impl Wake {
    pub(crate) fn new() -> std::io::Result<Self> {
        let mut flags = FLAGS.lock().unwrap();
        flags.push(false);
        Ok(Self(flags.len() - 1))
    }

    pub(crate) fn set(&self) {
        FLAGS.lock().unwrap()[self.0] = true;
        CHANGED.notify_all();
    }

    pub(crate) fn clear(&self) {
        FLAGS.lock().unwrap()[self.0] = false;
    }

    pub(crate) fn is_set(&self) -> bool {
        FLAGS.lock().unwrap()[self.0]
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let number = FIRST + RawFd::try_from(self.0).unwrap();
        // SAFETY: the number is only ever turned back into a flag, no system call sees it.
        unsafe { BorrowedFd::borrow_raw(number) }
    }
}

/// Whether a descriptor is set just now.
pub fn is_set(fd: BorrowedFd<'_>) -> bool {
    FLAGS.lock().unwrap()[flag(fd)]
}

#[derive(Clone, Copy)]
pub(crate) struct Flags;
pub(crate) const READ: Flags = Flags;

pub(crate) struct PollFd<'a> {
    fd: BorrowedFd<'a>,
    pub(crate) is_ready: bool,
}

impl<'a> PollFd<'a> {
    pub(crate) fn new(fd: &'a impl AsFd, _: Flags) -> Self {
        Self::from_borrowed_fd(fd.as_fd(), READ)
    }

    pub(crate) fn from_borrowed_fd(fd: BorrowedFd<'a>, _: Flags) -> Self {
        Self {
            fd,
            is_ready: false,
        }
    }
}

/// Returns once one of the descriptors is set.
pub(crate) fn poll(fds: &mut [PollFd<'_>], _: Duration) -> Result<(), ()> {
    let mut flags = FLAGS.lock().unwrap();
    loop {
        for fd in fds.iter_mut() {
            fd.is_ready = flags[flag(fd.fd)];
        }
        if fds.iter().any(|fd| fd.is_ready) {
            return Ok(());
        }
        flags = CHANGED.wait(flags).unwrap();
    }
}

fn flag(fd: BorrowedFd<'_>) -> usize {
    usize::try_from(fd.as_raw_fd() - FIRST).unwrap()
}
