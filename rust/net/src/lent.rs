//! Memory that a caller lends for one call, and the system calls that read and write it in place.
//!
//! Python may touch the same bytes meanwhile, so no slice of them is ever formed for writing.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

#[cfg(target_os = "linux")]
const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const FLAGS: libc::c_int = libc::MSG_DONTWAIT;

/// Readable memory of a caller.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    start: *const u8,
    len: usize,
    owner: PhantomData<&'a ()>,
}

/// Writable memory of a caller.
#[derive(Debug)]
pub struct LentMut<'a> {
    start: *mut u8,
    len: usize,
    owner: PhantomData<&'a ()>,
}

// SAFETY: an address and a length; the memory is lent to the call, whichever thread makes it.
unsafe impl Send for Lent<'_> {}
// SAFETY: as above.
unsafe impl Sync for Lent<'_> {}
// SAFETY: as above.
unsafe impl Send for LentMut<'_> {}
// SAFETY: as above; every write takes the value by `&mut`.
unsafe impl Sync for LentMut<'_> {}

impl<'a> Lent<'a> {
    /// Lend `len` bytes at `start`.
    ///
    /// # Safety
    ///
    /// The bytes must stay mapped for `'a`, and nobody may write them meanwhile.
    #[must_use]
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        let owner = PhantomData;
        Self { start, len, owner }
    }

    /// Lend a slice.
    #[must_use]
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        // SAFETY: the borrow keeps the bytes mapped and unwritten for 'a.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }

    /// Bytes lent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is lent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC-32C of the first `len` bytes.
    pub(crate) fn checksum(&self, len: usize) -> u32 {
        checksum(self.start, len.min(self.len))
    }

    /// The bytes of `range`, as far as they are lent, for one reading.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &'a [u8] {
        let start = range.start.min(self.len);
        let end = range.end.clamp(start, self.len);
        if start == end {
            return &[];
        }
        // SAFETY: the range lies inside what is lent, which stays mapped and unwritten for 'a, as
        // `new` asks of the lender.
        unsafe { std::slice::from_raw_parts(self.start.add(start), end - start) }
    }

    /// Send `head` from `sent` on and then the first `len` lent bytes in one call.
    ///
    /// `sent` counts the bytes of both that have already gone; returns how many went now.
    pub(crate) fn send(
        &self,
        fd: BorrowedFd<'_>,
        head: &[u8],
        len: usize,
        sent: usize,
    ) -> Result<usize, Errno> {
        let len = len.min(self.len);
        let head_skip = sent.min(head.len());
        let body_skip = (sent - head_skip).min(len);
        let parts = [
            part(head.as_ptr().cast_mut(), head.len(), head_skip),
            part(self.start.cast_mut(), len, body_skip),
        ];
        transfer(fd, parts, |fd, message| {
            // SAFETY: `message` points at `parts`, and they at memory that lives for this call.
            unsafe { libc::sendmsg(fd, message, FLAGS) }
        })
    }
}

impl<'a> LentMut<'a> {
    /// Lend `len` bytes at `start` for writing.
    ///
    /// # Safety
    ///
    /// The bytes must stay mapped for `'a`, and nobody may rely on their values meanwhile.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        let owner = PhantomData;
        Self { start, len, owner }
    }

    /// Lend a slice.
    #[must_use]
    pub fn from_slice(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the exclusive borrow keeps the bytes mapped and untouched for 'a.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Bytes lent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is lent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC-32C of the first `len` bytes.
    pub(crate) fn checksum(&self, len: usize) -> u32 {
        checksum(self.start, len.min(self.len))
    }

    /// Copy the first bytes out, as many as `into` has and are lent.
    pub(crate) fn copy_to(&self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len);
        // SAFETY: both hold `len` bytes, and `into` is borrowed exclusively, so they are apart.
        unsafe { std::ptr::copy_nonoverlapping(self.start, into.as_mut_ptr(), len) };
        len
    }

    /// Copy `bytes` in from `offset` on, as many as are lent there; returns how many.
    pub(crate) fn copy_from(&mut self, offset: usize, bytes: &[u8]) -> usize {
        let offset = offset.min(self.len);
        let len = bytes.len().min(self.len - offset);
        // SAFETY: `offset + len` bytes are lent for writing; `bytes` is this crate's own memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), len) };
        len
    }

    /// Receive into `head` from `filled` on and then into the first `len` lent bytes.
    ///
    /// `filled` counts the bytes of both that are already there; 0 is the other side's close.
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        head: &mut [u8],
        len: usize,
        filled: usize,
    ) -> Result<usize, Errno> {
        let len = len.min(self.len);
        let head_skip = filled.min(head.len());
        let body_skip = (filled - head_skip).min(len);
        let parts = [
            part(head.as_mut_ptr(), head.len(), head_skip),
            part(self.start, len, body_skip),
        ];
        transfer(fd, parts, |fd, message| {
            // SAFETY: `message` points at `parts`, and they at memory that lives for this call.
            unsafe { libc::recvmsg(fd, message, FLAGS) }
        })
    }
}

/// CRC-32C of lent memory, part by part as it arrives.
#[derive(Debug, Default)]
pub(crate) struct RunningChecksum {
    /// Made with the first part: a frame that comes in one needs none.
    digest: Option<crc_fast::Digest>,
    summed: usize,
}

impl RunningChecksum {
    /// Bytes that are summed up.
    pub(crate) fn summed(&self) -> usize {
        self.summed
    }

    /// The checksum of the first `bytes`, as far as they are not summed up in one pass.
    pub(crate) fn whole(mut self, rows: &LentMut<'_>, bytes: usize) -> u32 {
        if self.summed == 0 {
            return rows.checksum(bytes);
        }
        self.sum_to(rows, bytes);
        let value = self.digest.map_or(0, |digest| digest.finalize());
        // The algorithm is 32 bits wide.
        u32::try_from(value).unwrap_or(0)
    }

    /// Go on up to byte `end`, at most to the end of what is lent.
    pub(crate) fn sum_to(&mut self, rows: &LentMut<'_>, end: usize) {
        let end = end.min(rows.len);
        if end > self.summed {
            // SAFETY: the lender keeps these bytes mapped, and they lie inside what is lent. The
            // slice lives for this read only; a lender that writes meanwhile spoils the checksum.
            let part = unsafe {
                std::slice::from_raw_parts(rows.start.add(self.summed), end - self.summed)
            };
            self.digest
                .get_or_insert_with(|| crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
                .update(part);
            self.summed = end;
        }
    }
}

fn checksum(start: *const u8, len: usize) -> u32 {
    if len == 0 {
        return 0;
    }
    // SAFETY: the lender keeps `len` bytes mapped. The slice lives for this read only; a lender
    // that writes meanwhile gets a wrong checksum, which the receiver refuses.
    crc_fast::crc32_iscsi(unsafe { std::slice::from_raw_parts(start, len) })
}

fn part(start: *mut u8, len: usize, skip: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.wrapping_add(skip).cast(),
        iov_len: len - skip,
    }
}

fn transfer(
    fd: BorrowedFd<'_>,
    mut parts: [libc::iovec; 2],
    call: impl FnOnce(libc::c_int, *mut libc::msghdr) -> libc::ssize_t,
) -> Result<usize, Errno> {
    let skip = usize::from(parts[0].iov_len == 0);
    // SAFETY: a message header of zeros is valid: no name, no parts, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts[skip..].as_mut_ptr();
    message.msg_iovlen = (parts.len() - skip) as _;
    let count = call(fd.as_fd().as_raw_fd(), &raw mut message);
    usize::try_from(count)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_protocols() {
        assert_eq!(Lent::from_slice(b"123456789").checksum(9), 0xE306_9283);
        assert_eq!(Lent::from_slice(b"").checksum(0), 0);
    }

    #[test]
    fn head_and_body_arrive_as_they_were_sent_however_the_calls_cut_them() {
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        let body: Vec<u8> = (0..=255).collect();
        let source = Lent::from_slice(&body);
        let mut head = [0_u8; 4];
        let mut got = vec![0_u8; 256];
        let mut target = LentMut::from_slice(&mut got);
        // The first call sends only a part of the head, by a length that leaves out the body.
        let mut gone = source.send(left.as_fd(), b"he", 0, 0).unwrap();
        gone += source.send(left.as_fd(), b"head", 256, gone).unwrap();
        assert_eq!(gone, 260);
        let mut filled = target.receive(right.as_fd(), &mut head, 3, 0).unwrap();
        filled += target
            .receive(right.as_fd(), &mut head, 256, filled)
            .unwrap();
        assert_eq!((filled, &head), (260, b"head"));
        assert_eq!(got, body);
    }
}
