//! The open message: the ring runs, with these timers (docs/protocol.md 6.4).
//! It keeps no time itself; `keepalive` does the sums.

use core::time::Duration;

use crate::{
    bytes::{Fixed, Put as _, Reader},
    describe::check_range,
    error::ProtocolError,
    limits,
};

/// What the lead says when every rank is ready.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Open {
    first_round: u64,
    keepalive_ms: u32,
    silent_intervals: u32,
}

impl Open {
    /// Bytes of the payload.
    pub const BYTES: usize = 32;

    /// Errors: `bad_limit`.
    pub fn new(
        first_round: u64,
        keepalive_ms: u32,
        silent_intervals: u32,
    ) -> Result<Self, ProtocolError> {
        check_range("first_round", first_round, 1..=u64::MAX)?;
        check_range("keepalive_ms", keepalive_ms, limits::KEEPALIVE_MS)?;
        check_range(
            "silent_intervals",
            silent_intervals,
            limits::SILENT_INTERVALS_RANGE,
        )?;
        Ok(Self {
            first_round,
            keepalive_ms,
            silent_intervals,
        })
    }

    /// Reads a payload. Errors: `bad_limit`, `reserved_not_zero`.
    pub fn parse(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        let open = Self::new(fields.u64()?, fields.u32()?, fields.u32()?)?;
        fields.reserved(16)?;
        fields.finish()?;
        Ok(open)
    }

    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Fixed::<{ Self::BYTES }>::new();
        out.u64(self.first_round);
        out.u32(self.keepalive_ms);
        out.u32(self.silent_intervals);
        out.zeros(16);
        out.finish()
    }

    /// Round number of the first plan.
    #[must_use]
    pub const fn first_round(&self) -> u64 {
        self.first_round
    }

    /// The keep-alive interval in milliseconds, as on the wire.
    #[must_use]
    pub const fn keepalive_ms(&self) -> u32 {
        self.keepalive_ms
    }

    /// The keep-alive interval.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_millis(u64_of(self.keepalive_ms))
    }

    /// Silent intervals that end the ring.
    #[must_use]
    pub const fn silent_intervals(&self) -> u32 {
        self.silent_intervals
    }
}

#[expect(
    clippy::as_conversions,
    reason = "u64::from is not const; widening loses nothing"
)]
const fn u64_of(value: u32) -> u64 {
    value as u64
}
