//! The refused message: a named refusal with a MAC (docs/protocol.md 4.3).
//! Its MAC is made and checked in `handshake`, which has the secret.

use alloc::string::String;

use crate::{
    bytes::{Fixed, Put as _, Reader, check_text, one_line},
    error::{ProtocolError, Refusal},
    limits,
};

/// A refused payload without its MAC.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// The broken rule.
    pub refusal: Refusal,
    /// One line for a person.
    pub text: String,
    /// Heads of the acceptor's field digests; zeros unless the refusal is `fingerprint`.
    pub heads: [u8; 64],
}

impl Refused {
    /// A refusal with a text, cut to one line of 156 bytes.
    #[must_use]
    pub fn new(refusal: Refusal, text: &str, heads: [u8; 64]) -> Self {
        let heads = if refusal == Refusal::Fingerprint {
            heads
        } else {
            [0; 64]
        };
        Self {
            refusal,
            text: one_line(text, limits::REFUSED_TEXT_MAX),
            heads,
        }
    }

    /// Reads the 224 bytes before the MAC. Errors: `bad_enum`, `bad_text`, `reserved_not_zero`.
    pub fn parse(bytes: &[u8; limits::REFUSED_PROVED_BYTES]) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(bytes);
        let number = fields.u16()?;
        let refusal =
            Refusal::from_number(number).ok_or_else(|| Refusal::BadEnum.unknown("code", number))?;
        let text_bytes = usize::from(fields.u16()?);
        let room = limits::REFUSED_TEXT_MAX;
        let padding = room
            .checked_sub(text_bytes)
            .ok_or_else(|| Refusal::BadText.error("expected a text of at most 156 bytes"))?;
        let text = fields.text(text_bytes)?;
        if fields.take(padding)?.iter().any(|&byte| byte != 0) {
            return Err(Refusal::BadText.error("expected zeros after the text"));
        }
        let heads: [u8; 64] = fields.array()?;
        fields.finish()?;
        if refusal != Refusal::Fingerprint && heads != [0; 64] {
            return Err(Refusal::ReservedNotZero.error("expected no field digests here"));
        }
        Ok(Self {
            refusal,
            text: text.into(),
            heads,
        })
    }

    /// The 224 bytes before the MAC; the text is cut to one line that fits.
    #[must_use]
    pub fn encode(&self) -> [u8; limits::REFUSED_PROVED_BYTES] {
        let mut out = Fixed::<{ limits::REFUSED_PROVED_BYTES }>::new();
        let text = if check_text(&self.text).is_ok() && self.text.len() <= limits::REFUSED_TEXT_MAX
        {
            self.text.clone()
        } else {
            one_line(&self.text, limits::REFUSED_TEXT_MAX)
        };
        out.u16(self.refusal.number());
        out.u16(u16::try_from(text.len()).unwrap_or(0));
        out.bytes(text.as_bytes());
        out.zeros(limits::REFUSED_TEXT_MAX.saturating_sub(text.len()));
        out.bytes(&self.heads);
        out.finish()
    }
}
