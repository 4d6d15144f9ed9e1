//! Which faults are set for one direction of one connection.
//!
//! It remembers them; `rewrite` and `lane` carry them out.

use std::time::Duration;

use crate::command::Order;
use crate::draw::Draw;

/// How a stream ends, or stops, at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Hold everything back from here on.
    BlackHole,
    /// End of the stream; the other direction goes on.
    HalfClose,
    /// End of both directions, in order.
    Close,
    /// End of the connection with RST at both ends.
    Reset,
}

/// How a chunk is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// It comes twice.
    Duplicate,
    /// It changes places with the next chunk of its length.
    Reorder,
}

/// A fault bound to an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Exclusive-or the byte with this.
    Flip(u8),
    /// Change the chunk of so many bytes that begins here.
    Chunk(Chunk, usize),
    /// End before this byte.
    End(Ending),
}

/// Writing in small pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// Most bytes of a piece, at least 1.
    pub(crate) bytes_max: u64,
    /// Time between two pieces.
    pub(crate) pause: Duration,
}

/// The faults of one direction.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
    /// Bytes in a second, at least 1.
    pub(crate) rate: Option<u64>,
    pub(crate) slice: Option<Slice>,
    /// One byte of so many is hit, at least 1.
    pub(crate) flip_rate: Option<u64>,
    marks: Vec<(u64, Mark)>,
}

/// The mark that `order` sets, and where; nothing when it is not bound to an offset.
pub(crate) fn mark_of(order: Order, draw: Draw) -> Option<(u64, Mark)> {
    match order {
        Order::BlackHole { at } => Some((at?, Mark::End(Ending::BlackHole))),
        Order::HalfClose { at } => Some((at?, Mark::End(Ending::HalfClose))),
        Order::Reset { at } => Some((at?, Mark::End(Ending::Reset))),
        Order::Truncate { at } => Some((at, Mark::End(Ending::Close))),
        Order::Duplicate { at, bytes } => Some((at, Mark::Chunk(Chunk::Duplicate, bytes.max(1)))),
        Order::Reorder { at, bytes } => Some((at, Mark::Chunk(Chunk::Reorder, bytes.max(1)))),
        Order::Flip { at, mask } => {
            let mask = mask.unwrap_or_else(|| draw.bit(at));
            Some((at, Mark::Flip(mask)))
        }
        _ => None,
    }
}

impl Faults {
    /// Set a fault that lasts; other orders change nothing here.
    pub(crate) fn set(&mut self, order: Order) {
        match order {
            Order::Latency { fixed, jitter } => {
                self.latency = fixed;
                self.jitter = jitter;
            }
            Order::Rate { bytes_per_second } => self.rate = Some(bytes_per_second.max(1)),
            Order::Slice { bytes_max, pause } => {
                let bytes_max = bytes_max.max(1);
                self.slice = Some(Slice { bytes_max, pause });
            }
            Order::FlipRate { n } => self.flip_rate = Some(n.max(1)),
            _ => {}
        }
    }

    /// Remember `mark` at `offset`.
    pub(crate) fn mark(&mut self, offset: u64, mark: Mark) {
        self.marks.push((offset, mark));
    }

    /// How many marks are remembered.
    pub(crate) fn marks_count(&self) -> usize {
        self.marks.len()
    }

    /// Forget the marks before `offset`: their bytes have gone.
    pub(crate) fn forget_before(&mut self, offset: u64) {
        self.marks.retain(|&(at, _)| at >= offset);
    }

    /// The masks of the flips inside `first..end`.
    pub(crate) fn flips(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u8)> {
        self.marks.iter().filter_map(move |&(at, mark)| match mark {
            Mark::Flip(mask) if (first..end).contains(&at) => Some((at, mask)),
            _ => None,
        })
    }

    /// The first changed chunk that begins at `offset` or later.
    pub(crate) fn next_chunk(&self, offset: u64) -> Option<(u64, Chunk, usize)> {
        self.marks
            .iter()
            .filter_map(|&(at, mark)| match mark {
                Mark::Chunk(chunk, bytes) if at >= offset => Some((at, chunk, bytes)),
                _ => None,
            })
            .min_by_key(|&(at, _, _)| at)
    }

    /// The first ending at `offset` or later.
    pub(crate) fn next_end(&self, offset: u64) -> Option<(u64, Ending)> {
        self.marks
            .iter()
            .filter_map(|&(at, mark)| match mark {
                Mark::End(ending) if at >= offset => Some((at, ending)),
                _ => None,
            })
            .min_by_key(|&(at, _)| at)
    }

    /// Forget the endings at exactly `offset`: they are being carried out.
    pub(crate) fn forget_end(&mut self, offset: u64) {
        self.marks
            .retain(|&(at, mark)| at != offset || !matches!(mark, Mark::End(_)));
    }
}
