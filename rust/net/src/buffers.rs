//! Zeroed memory for rows, aligned for vector instructions and device copies.
//!
//! It does not know what the bytes mean, and never grows, moves or shrinks.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::LinkError;

/// Alignment of every buffer's first byte.
pub const ALIGNMENT: usize = 64;
/// The largest buffer, the protocol's largest payload.
pub const BUFFER_BYTES_MAX: usize = 1 << 30;

/// A block of zeroed memory that stays where it is until it is dropped.
#[derive(Debug)]
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the block belongs to this value alone, and the value hands out nothing but its address.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; who writes through the address answers for the order of the accesses.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocate `len` zeroed bytes; refuses more than 1 GiB, and tells when memory is short.
    pub fn new(len: usize) -> Result<Self, LinkError> {
        if len > BUFFER_BYTES_MAX {
            return Err(LinkError::config(
                "buffer_size",
                format!("a rows buffer of {len} bytes was asked for, expected at most 1 GiB"),
            ));
        }
        // SAFETY: the layout's size is not zero, and both numbers were checked by `layout`.
        let start = NonNull::new(unsafe { alloc_zeroed(Self::layout(len)) });
        let start = start.ok_or_else(|| {
            LinkError::config(
                "memory",
                format!("no memory for a rows buffer of {len} bytes"),
            )
        })?;
        Ok(Self { start, len })
    }

    /// Bytes that may be used.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte's address; valid as long as this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn layout(len: usize) -> Layout {
        // Whole lines of 64 bytes, so that a vector load at the end stays inside the block.
        let size = len.max(1).next_multiple_of(ALIGNMENT);
        Layout::from_size_align(size, ALIGNMENT).unwrap_or(Layout::new::<[u8; ALIGNMENT]>())
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_aligned_and_too_large_a_one_is_refused() {
        for len in [0, 1, 63, 64, 65, 20_480, 1 << 20] {
            let buffer = AlignedBuffer::new(len).unwrap();
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.len(), len);
        }
        assert_eq!(
            AlignedBuffer::new(BUFFER_BYTES_MAX + 1).unwrap_err().reason,
            "buffer_size"
        );
    }
}
