//! The eight bytes that describe, ready and plan payloads start with (docs/protocol.md 6).
//! It knows nothing of what follows them.

use crate::{
    bytes::{Put, Reader},
    error::{ProtocolError, Refusal},
};

const MAGIC: u32 = 0x5053_4654;
const VERSION: u16 = 1;

/// Which payload follows.
#[derive(Clone, Copy)]
pub(crate) enum Message {
    Describe,
    Ready,
    Plan,
}

impl Message {
    const fn number(self) -> u8 {
        match self {
            Self::Describe => 1,
            Self::Ready => 2,
            Self::Plan => 3,
        }
    }

    /// Reads the prefix. Errors: `bad_prefix_*`, `reserved_not_zero`, `payload_short`.
    pub(crate) fn parse(self, fields: &mut Reader<'_>) -> Result<(), ProtocolError> {
        let magic = fields.u32()?;
        if magic != MAGIC {
            return Err(Refusal::BadPrefixMagic.numbers("prefix magic", MAGIC, magic));
        }
        let version = fields.u16()?;
        if version != VERSION {
            return Err(Refusal::BadPrefixVersion.numbers("prefix version", VERSION, version));
        }
        let message = fields.u8()?;
        if message != self.number() {
            return Err(Refusal::BadPrefixMessage.numbers("message", self.number(), message));
        }
        fields.reserved(1)
    }

    pub(crate) fn encode(self, out: &mut impl Put) {
        out.u32(MAGIC);
        out.u16(VERSION);
        out.u8(self.number());
        out.u8(0);
    }
}
