//! The ready message: a follower is loaded and warm (docs/protocol.md 6.3).
//! It promises nothing about a device's graphs.

use crate::{
    bytes::{Fixed, Put as _, Reader},
    error::{ProtocolError, Refusal},
    prefix::Message,
};

/// What a follower says once it can run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ready {
    /// The sender.
    pub rank: u32,
    /// Milliseconds of loading and warming.
    pub load_ms: u32,
    /// Bytes of the own tensors in memory.
    pub tensor_bytes_held: u64,
    /// Bytes read from the checkpoint for them.
    pub tensor_bytes_read: u64,
}

impl Ready {
    /// Bytes of the payload.
    pub const BYTES: usize = 40;

    /// Reads a payload from the follower of `rank`. Errors: `rank_description`, field rules.
    pub fn parse(payload: &[u8], rank: u32) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        Message::Ready.parse(&mut fields)?;
        let ready = Self {
            rank: fields.u32()?,
            load_ms: fields.u32()?,
            tensor_bytes_held: fields.u64()?,
            tensor_bytes_read: fields.u64()?,
        };
        if ready.rank != rank {
            return Err(Refusal::RankDescription.numbers("rank", rank, ready.rank));
        }
        fields.reserved(8)?;
        fields.finish()?;
        Ok(ready)
    }

    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Fixed::<{ Self::BYTES }>::new();
        Message::Ready.encode(&mut out);
        out.u32(self.rank);
        out.u32(self.load_ms);
        out.u64(self.tensor_bytes_held);
        out.u64(self.tensor_bytes_read);
        out.zeros(8);
        out.finish()
    }
}
