//! Ends another thread's poll.
//!
//! It carries no data: what happened is read elsewhere.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Readable from `set` until `clear`.
#[derive(Debug)]
pub(crate) struct Wake {
    readable: UnixStream,
    writable: UnixStream,
}

impl Wake {
    /// A pair of connected sockets, closed on exec.
    pub(crate) fn new() -> io::Result<Self> {
        let (readable, writable) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        writable.set_nonblocking(true)?;
        Ok(Self { readable, writable })
    }

    /// End the poll, or the next one.
    pub(crate) fn set(&self) {
        // A full socket is readable already, which is all that is wanted.
        let _ = (&self.writable).write(&[1]);
    }

    /// Take back what was set.
    pub(crate) fn clear(&self) {
        let mut scratch = [0; 64];
        while matches!((&self.readable).read(&mut scratch), Ok(count) if count > 0) {}
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
