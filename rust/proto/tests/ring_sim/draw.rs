//! Seeded numbers (splitmix64): the same seed is the same run.
//! It knows nothing of what is drawn.

use std::time::Duration;

#[derive(Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    /// Numbers of `seed`; `purpose` keeps the numbers of two uses apart.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut draw = Self(seed ^ purpose.wrapping_mul(0xA076_1D64_78BD_642F));
        draw.0 = draw.next();
        draw
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A number of `first..end`.
    pub(crate) fn between(&mut self, first: u64, end: u64) -> u64 {
        first + self.below(end - first)
    }

    pub(crate) fn rank(&mut self, world: u32) -> u32 {
        u32::try_from(self.below(u64::from(world))).unwrap_or(0)
    }

    pub(crate) fn small(&mut self, first: u32, end: u32) -> u32 {
        first + self.rank(end - first)
    }

    /// True in so many of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap_or(0)]
    }

    pub(crate) fn micros(&mut self, end: u64) -> Duration {
        Duration::from_micros(self.below(end))
    }

    /// A time of `first..end` milliseconds.
    pub(crate) fn millis(&mut self, first: u64, end: u64) -> Duration {
        Duration::from_micros(self.between(first * 1_000, end * 1_000))
    }

    pub(crate) fn nonce(&mut self) -> [u8; 32] {
        let mut nonce = [0; 32];
        for piece in nonce.chunks_exact_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes());
        }
        nonce
    }
}

/// A number that depends on every bit of `number`.
pub(crate) const fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
