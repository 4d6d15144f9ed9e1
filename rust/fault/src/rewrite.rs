//! Changes the bytes of one stream: flips, a chunk that comes twice, two chunks that swap.
//!
//! It knows offsets and no time; however the stream is cut into reads, the result is the same.

use crate::draw::{Draw, Use};
use crate::faults::{Chunk, Faults};

/// What was changed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) flipped: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
}

/// The place in a stream, and the chunk that is being collected there.
#[derive(Debug, Default)]
pub(crate) struct Rewrite {
    offset: u64,
    chunk: Option<Collected>,
    changes: Changes,
}

/// A chunk of which a part has come.
#[derive(Debug)]
struct Collected {
    kind: Chunk,
    bytes: usize,
    held: Vec<u8>,
}

impl Collected {
    /// A reorder waits for both chunks.
    fn wanted(&self) -> usize {
        match self.kind {
            Chunk::Duplicate => self.bytes,
            Chunk::Reorder => self.bytes * 2,
        }
    }
}

impl Rewrite {
    /// The offset of the next byte to come.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// What was changed so far.
    pub(crate) fn changes(&self) -> Changes {
        self.changes
    }

    /// Take the next bytes of the stream and append what goes on now to `out`.
    pub(crate) fn take(
        &mut self,
        bytes: &mut [u8],
        faults: &Faults,
        draw: Draw,
        out: &mut Vec<u8>,
    ) {
        self.flip(bytes, faults, draw);
        let mut rest = &*bytes;
        while !rest.is_empty() {
            let count = self.take_run(rest, faults, out);
            self.offset += count as u64;
            rest = &rest[count..];
        }
    }

    /// The stream ends here: append what was held, in its own order.
    pub(crate) fn flush(&mut self, out: &mut Vec<u8>) {
        if let Some(chunk) = self.chunk.take()
            && chunk.kind == Chunk::Reorder
        {
            out.extend_from_slice(&chunk.held);
        }
    }

    fn flip(&mut self, bytes: &mut [u8], faults: &Faults, draw: Draw) {
        let first = self.offset;
        let end = first + bytes.len() as u64;
        for (at, mask) in faults.flips(first, end) {
            if let Ok(index) = usize::try_from(at - first) {
                bytes[index] ^= mask;
                self.changes.flipped += 1;
            }
        }
        if let Some(n) = faults.flip_rate {
            for (at, byte) in (first..end).zip(bytes) {
                if draw.below(Use::Hit, at, n) == 0 {
                    *byte ^= draw.bit(at);
                    self.changes.flipped += 1;
                }
            }
        }
    }

    /// Take bytes up to the next place where something begins or ends; returns how many.
    fn take_run(&mut self, rest: &[u8], faults: &Faults, out: &mut Vec<u8>) -> usize {
        let next = faults.next_chunk(self.offset);
        if self.chunk.is_none()
            && let Some((at, kind, bytes)) = next
            && at == self.offset
        {
            self.chunk = Some(Collected {
                kind,
                bytes,
                held: Vec::new(),
            });
        }
        let Some(mut chunk) = self.chunk.take() else {
            let distance = next.map_or(u64::MAX, |(at, _, _)| at - self.offset);
            let count = rest
                .len()
                .min(usize::try_from(distance).unwrap_or(usize::MAX));
            out.extend_from_slice(&rest[..count]);
            return count;
        };
        let count = rest.len().min(chunk.wanted() - chunk.held.len());
        chunk.held.extend_from_slice(&rest[..count]);
        if chunk.kind == Chunk::Duplicate {
            // The first copy goes on as it comes: its sender may wait for an answer to it.
            out.extend_from_slice(&rest[..count]);
        }
        if chunk.held.len() < chunk.wanted() {
            self.chunk = Some(chunk);
        } else {
            self.finish(&chunk, out);
        }
        count
    }

    fn finish(&mut self, chunk: &Collected, out: &mut Vec<u8>) {
        match chunk.kind {
            Chunk::Duplicate => {
                out.extend_from_slice(&chunk.held);
                self.changes.duplicated += 1;
            }
            Chunk::Reorder => {
                let (first, second) = chunk.held.split_at(chunk.bytes);
                out.extend_from_slice(second);
                out.extend_from_slice(first);
                self.changes.reordered += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Mark;

    fn pass(faults: &Faults, input: &[u8], cut: usize) -> Vec<u8> {
        let mut rewrite = Rewrite::default();
        let mut out = Vec::new();
        for piece in input.chunks(cut) {
            rewrite.take(&mut piece.to_vec(), faults, Draw::new(1, 0), &mut out);
        }
        rewrite.flush(&mut out);
        out
    }

    #[test]
    fn the_result_does_not_depend_on_the_reads() {
        let input: Vec<u8> = (0..=255).collect();
        let mut faults = Faults::default();
        faults.flip_rate = Some(10);
        faults.mark(3, Mark::Flip(0xFF));
        faults.mark(10, Mark::Chunk(Chunk::Duplicate, 20));
        faults.mark(40, Mark::Chunk(Chunk::Reorder, 50));
        let whole = pass(&faults, &input, input.len());
        assert_eq!(whole.len(), input.len() + 20);
        for cut in [1, 2, 7, 64] {
            assert_eq!(pass(&faults, &input, cut), whole, "reads of {cut}");
        }
    }

    #[test]
    fn chunks_swap_and_come_twice() {
        let mut faults = Faults::default();
        faults.mark(1, Mark::Chunk(Chunk::Reorder, 2));
        faults.mark(6, Mark::Chunk(Chunk::Duplicate, 1));
        assert_eq!(pass(&faults, b"abcdefgh", 3), b"adebcfggh");
    }

    #[test]
    fn a_swap_that_never_completes_keeps_its_order() {
        let mut faults = Faults::default();
        faults.mark(1, Mark::Chunk(Chunk::Reorder, 100));
        assert_eq!(pass(&faults, b"abcdefgh", 3), b"abcdefgh");
    }
}
