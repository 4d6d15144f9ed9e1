//! The progress message: what an engine does, and that its process lives (docs/protocol.md 6.5).
//! Whether the engine gets on is judged in `keepalive`.

use core::time::Duration;

use crate::{
    bytes::{Fixed, Put as _, Reader},
    describe::wire_enum,
    error::{ProtocolError, Refusal},
};

wire_enum! {
    /// What an engine is busy with.
    Phase "phase" {
        /// Before loading.
        1 Booting "booting",
        /// Reads its tensors.
        2 Loading "loading",
        /// Runs once before the ring opens.
        3 Warming "warming",
        /// Waits for a plan.
        4 Idle "idle",
        /// Waits for rows.
        5 Receiving "receiving",
        /// Computes.
        6 Computing "computing",
        /// Sends rows.
        7 Sending "sending",
    }
}

/// One report of a stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress {
    /// The sender.
    pub rank: u32,
    /// What it does.
    pub phase: Phase,
    /// The round that the phase belongs to; 0 none.
    pub round: u64,
    /// Grows whenever the engine gets on.
    pub counter: u64,
    /// Milliseconds that the counter may stand still in this phase; 0: no limit.
    pub busy_limit_ms: u32,
    /// Bytes loaded or rows computed in this phase, for people.
    pub done: u64,
}

impl Progress {
    /// Bytes of the payload.
    pub const BYTES: usize = 40;

    /// Reads a payload from `rank`. Errors: `rank_description`, `bad_enum`, `reserved_not_zero`.
    pub fn parse(payload: &[u8], rank: u32) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        let got = fields.u32()?;
        if got != rank {
            return Err(Refusal::RankDescription.numbers("rank", rank, got));
        }
        let phase = Phase::from_number(fields.u8()?)?;
        fields.reserved(3)?;
        let (round, counter, busy_limit_ms) = (fields.u64()?, fields.u64()?, fields.u32()?);
        fields.reserved(4)?;
        let done = fields.u64()?;
        fields.finish()?;
        Ok(Self {
            rank,
            phase,
            round,
            counter,
            busy_limit_ms,
            done,
        })
    }

    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Fixed::<{ Self::BYTES }>::new();
        out.u32(self.rank);
        out.u8(self.phase.number());
        out.zeros(3);
        out.u64(self.round);
        out.u64(self.counter);
        out.u32(self.busy_limit_ms);
        out.zeros(4);
        out.u64(self.done);
        out.finish()
    }

    /// How long the counter may stand still; `None` without a limit.
    #[must_use]
    pub fn busy_limit(&self) -> Option<Duration> {
        (self.busy_limit_ms > 0).then(|| Duration::from_millis(u64::from(self.busy_limit_ms)))
    }
}
