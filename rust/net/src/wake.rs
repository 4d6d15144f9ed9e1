//! A descriptor that becomes readable when one thread wants another out of its poll.
//!
//! It carries no data: what happened is read elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// Readable from `set` until `clear`.
#[derive(Debug)]
pub(crate) struct Wake {
    readable: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    writable: OwnedFd,
}

impl Wake {
    /// Make the descriptor; it is closed on exec.
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { readable })
    }

    /// Make the pair of descriptors; they are closed on exec.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> io::Result<Self> {
        let (readable, writable) = rustix::pipe::pipe()?;
        for fd in [&readable, &writable] {
            rustix::io::ioctl_fionbio(fd, true)?;
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
        }
        Ok(Self { readable, writable })
    }

    /// Make it readable; a full pipe or counter is readable already.
    pub(crate) fn set(&self) {
        #[cfg(target_os = "linux")]
        let fd = &self.readable;
        #[cfg(not(target_os = "linux"))]
        let fd = &self.writable;
        while rustix::io::write(fd, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Make it unreadable again.
    pub(crate) fn clear(&self) {
        let mut bytes = [0_u8; 64];
        while matches!(
            rustix::io::read(&self.readable, &mut bytes),
            Ok(64) | Err(Errno::INTR)
        ) {}
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
