//! Takes numbers and pieces from the front of an input; an input that has ended gives zeros.
//!
//! It judges nothing.

/// What is left of an input.
pub(crate) struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// At most `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// Exactly so many bytes, zeros after the end.
    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let front = self.bytes(N);
        array[..front.len()].copy_from_slice(front);
        array
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// A piece with its length (two bytes) before it; nothing at the end.
    pub(crate) fn piece(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let count = self.u16();
        Some(self.bytes(count.into()))
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
