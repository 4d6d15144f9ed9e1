//! Draws from a seed: a number for each place, the same whenever it is asked for.
//!
//! It keeps no state, so no draw depends on how many were made before it.

/// What a draw decides; two uses of one place never share a number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// Extra delay of a piece.
    Jitter = 1,
    /// Length of a slice.
    Slice = 2,
    /// Which bit a flip turns.
    Bit = 3,
    /// Whether a byte is hit by `flip_rate`.
    Hit = 4,
}

/// The draws of one direction of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    base: u64,
}

impl Draw {
    /// Draws of `lane` (any number that names the direction and the connection) under `seed`.
    pub(crate) fn new(seed: u64, lane: u64) -> Self {
        Self {
            base: mix(seed ^ mix(lane)),
        }
    }

    /// The number of the byte at `offset`.
    pub(crate) fn at(self, what: Use, offset: u64) -> u64 {
        mix(mix(self.base ^ what as u64).wrapping_add(offset))
    }

    /// A number below `end`, which is at least 1.
    pub(crate) fn below(self, what: Use, offset: u64, end: u64) -> u64 {
        self.at(what, offset) % end.max(1)
    }

    /// One bit of the byte at `offset`.
    pub(crate) fn bit(self, offset: u64) -> u8 {
        1 << self.below(Use::Bit, offset, 8)
    }
}

/// The output step of the `SplitMix64` generator (Steele, Lea, Flood, 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixer_agrees_with_the_published_sequence() {
        // First output of SplitMix64 with state 0.
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn a_place_has_one_number_for_each_use() {
        let draw = Draw::new(7, 0);
        assert_eq!(draw.at(Use::Slice, 9), Draw::new(7, 0).at(Use::Slice, 9));
        assert_ne!(draw.at(Use::Slice, 9), draw.at(Use::Jitter, 9));
        assert_ne!(draw.at(Use::Slice, 9), Draw::new(8, 0).at(Use::Slice, 9));
        assert_ne!(draw.at(Use::Slice, 9), Draw::new(7, 1).at(Use::Slice, 9));
    }
}
