//! The figures message: what a follower's loop came to, for people (docs/protocol.md 6.8).
//! It decides nothing; a lead that gets none shows that nothing is known.

use crate::{
    bytes::{Fixed, Put as _, Reader},
    error::{ProtocolError, Refusal},
};

/// What a follower's loop came to, from `open` to the lead's bye.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Figures {
    /// The sender.
    pub rank: u32,
    /// Rounds with rows.
    pub rounds: u64,
    /// Rows computed.
    pub rows: u64,
    /// Microseconds inside the engine.
    pub compute_us: u64,
    /// Microseconds inside the link's calls.
    pub wait_us: u64,
    /// Bytes written to all links, headers included.
    pub bytes_sent: u64,
    /// Bytes read from all links, headers included.
    pub bytes_received: u64,
}

impl Figures {
    /// Bytes of the payload.
    pub const BYTES: usize = 56;

    /// A rank's six values, in the order of the fields.
    #[must_use]
    pub const fn of(rank: u32, values: [u64; 6]) -> Self {
        let [
            rounds,
            rows,
            compute_us,
            wait_us,
            bytes_sent,
            bytes_received,
        ] = values;
        Self {
            rank,
            rounds,
            rows,
            compute_us,
            wait_us,
            bytes_sent,
            bytes_received,
        }
    }

    /// The six values, in the order of the fields.
    #[must_use]
    pub const fn values(&self) -> [u64; 6] {
        [
            self.rounds,
            self.rows,
            self.compute_us,
            self.wait_us,
            self.bytes_sent,
            self.bytes_received,
        ]
    }

    /// Reads a payload from the follower of `rank`. Errors: `rank_description`, field rules.
    pub fn parse(payload: &[u8], rank: u32) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        let its = fields.u32()?;
        if its != rank {
            return Err(Refusal::RankDescription.numbers("rank", rank, its));
        }
        fields.reserved(4)?;
        let mut values = [0; 6];
        for value in &mut values {
            *value = fields.u64()?;
        }
        fields.finish()?;
        Ok(Self::of(rank, values))
    }

    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Fixed::<{ Self::BYTES }>::new();
        out.u32(self.rank);
        out.zeros(4);
        for value in self.values() {
            out.u64(value);
        }
        out.finish()
    }
}
