//! Memory pipes on a virtual clock: bytes arrive late, in order and in pieces.
//! It knows no frame.

use std::{collections::VecDeque, time::Duration};

/// Seeded numbers (splitmix64): the same seed is the same run.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    pub(crate) fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

/// One direction of one connection.
#[derive(Default)]
pub(crate) struct Pipe {
    arriving: VecDeque<(Duration, Vec<u8>)>,
    last: Duration,
    ends_at: Option<Duration>,
}

impl Pipe {
    /// Bytes leave now and arrive after `delay`, never before earlier ones.
    pub(crate) fn send(&mut self, bytes: &[u8], now: Duration, delay: Duration) {
        if self.ends_at.is_none() {
            self.last = self.last.max(now + delay);
            self.arriving.push_back((self.last, bytes.to_vec()));
        }
    }

    /// The sender closes: the receiver sees the end after everything that was sent.
    pub(crate) fn close(&mut self, now: Duration, delay: Duration) {
        self.last = self.last.max(now + delay);
        self.ends_at.get_or_insert(self.last);
    }

    /// At most `most` bytes that have arrived.
    pub(crate) fn receive(&mut self, now: Duration, most: usize) -> Option<Vec<u8>> {
        let (_, bytes) = self.arriving.front_mut().filter(|(at, _)| *at <= now)?;
        let piece: Vec<u8> = bytes.drain(..bytes.len().min(most)).collect();
        if bytes.is_empty() {
            self.arriving.pop_front();
        }
        Some(piece)
    }

    /// True once the receiver has seen everything and the end.
    pub(crate) fn has_ended(&self, now: Duration) -> bool {
        self.arriving.is_empty() && self.ends_at.is_some_and(|at| at <= now)
    }

    /// When something arrives next.
    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.arriving.front().map(|(at, _)| *at).or(self.ends_at)
    }
}

/// All pipes of a ring, and the chance that delays and splits them.
pub(crate) struct Wire {
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) draw: Draw,
    pub(crate) delay_ms: u64,
}

impl Wire {
    /// A new connection: the pipes of its two ends, each as (in, out).
    pub(crate) fn connect(&mut self) -> ((usize, usize), (usize, usize)) {
        let there = self.pipes.len();
        self.pipes.push(Pipe::default());
        self.pipes.push(Pipe::default());
        ((there + 1, there), (there, there + 1))
    }

    pub(crate) fn send(&mut self, pipe: usize, bytes: &[u8], now: Duration) {
        let delay = self.draw.millis(self.delay_ms);
        self.pipes[pipe].send(bytes, now, delay);
    }

    pub(crate) fn close(&mut self, pipe: usize, now: Duration) {
        let delay = self.draw.millis(self.delay_ms);
        self.pipes[pipe].close(now, delay);
    }

    pub(crate) fn receive(&mut self, pipe: usize, now: Duration) -> Option<Vec<u8>> {
        let most = usize::try_from(1 + self.draw.below(64)).unwrap();
        self.pipes[pipe].receive(now, most)
    }

    /// Flips one bit of what is under way on some pipe; false where nothing is.
    pub(crate) fn flip(&mut self) -> bool {
        let Self { pipes, draw, .. } = self;
        let mut busy: Vec<_> = pipes
            .iter_mut()
            .filter_map(|it| it.arriving.back_mut())
            .collect();
        if busy.is_empty() {
            return false;
        }
        let which = usize::try_from(draw.below(busy.len() as u64)).unwrap();
        let bytes = &mut busy[which].1;
        let at = usize::try_from(draw.below(bytes.len() as u64)).unwrap();
        bytes[at] ^= 1 << draw.below(8);
        true
    }
}
