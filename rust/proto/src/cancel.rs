//! The cancel message: advice that a stream will be cancelled (docs/protocol.md 6.6).
//! It changes no state; a plan does.

use crate::{
    bytes::{Fixed, Put as _, Reader},
    error::ProtocolError,
};

/// Advice that an engine may skip the rows of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cancel {
    /// The stream's id.
    pub stream: u32,
}

impl Cancel {
    /// Bytes of the payload.
    pub const BYTES: usize = 8;

    /// Reads a payload. Errors: `reserved_not_zero`.
    pub fn parse(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        let stream = fields.u32()?;
        fields.reserved(4)?;
        fields.finish()?;
        Ok(Self { stream })
    }

    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Fixed::<{ Self::BYTES }>::new();
        out.u32(self.stream);
        out.u32(0);
        out.finish()
    }
}
