//! The fate message: the ring ends, why, and who is to blame (docs/protocol.md 6.6).
//! It closes nothing; `FirstFate` keeps the one that wins.

use alloc::{string::String, vec::Vec};

use crate::{
    bytes::{Put as _, Reader, check_text, one_line},
    error::{ProtocolError, Refusal},
    limits,
};

const UNKNOWN_RANK: u32 = u32::MAX;

/// Why the ring ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fate {
    /// The code that every rank reports.
    pub refusal: Refusal,
    /// The rank that is to blame, where known.
    pub culprit: Option<u32>,
    /// The rank that saw it.
    pub reporter: u32,
    text: String,
}

impl Fate {
    /// A fate whose text is cut to one line of 512 bytes.
    #[must_use]
    pub fn new(refusal: Refusal, culprit: Option<u32>, reporter: u32, text: &str) -> Self {
        Self {
            refusal,
            culprit,
            reporter,
            text: one_line(text, limits::FATE_TEXT_MAX),
        }
    }

    /// Reads a payload on a ring of `world` ranks. Errors: the rules of section 6.6.
    pub fn parse(payload: &[u8], world: u32) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        let number = fields.u16()?;
        let refusal =
            Refusal::from_number(number).ok_or_else(|| Refusal::BadEnum.unknown("code", number))?;
        let text_bytes = usize::from(fields.u16()?);
        if text_bytes > limits::FATE_TEXT_MAX {
            return Err(Refusal::BadText.error("expected a text of at most 512 bytes"));
        }
        let culprit = fields.u32()?;
        let last = world.saturating_sub(1);
        if culprit > last && culprit != UNKNOWN_RANK {
            return Err(Refusal::BadLimit.outside("culprit", 0_u32, last, culprit));
        }
        let reporter = fields.u32()?;
        if reporter > last {
            return Err(Refusal::BadLimit.outside("reporter", 0_u32, last, reporter));
        }
        fields.reserved(4)?;
        let text = fields.text(text_bytes)?.into();
        fields.finish()?;
        let culprit = (culprit != UNKNOWN_RANK).then_some(culprit);
        Ok(Self {
            refusal,
            culprit,
            reporter,
            text,
        })
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(check_text(&self.text).is_ok(), "made by one_line or parsed");
        out.u16(self.refusal.number());
        out.u16(u16::try_from(self.text.len()).unwrap_or(0));
        out.u32(self.culprit.unwrap_or(UNKNOWN_RANK));
        out.u32(self.reporter);
        out.u32(0);
        out.bytes(self.text.as_bytes());
    }

    /// One line for a person.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The first fate wins; later ones are consequences of it.
#[derive(Clone, Debug, Default)]
pub struct FirstFate {
    first: Option<Fate>,
}

impl FirstFate {
    /// Nothing has happened yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: None }
    }

    /// Notes a fate; true where it is the first, and so the one to spread.
    pub fn see(&mut self, fate: Fate) -> bool {
        let is_first = self.first.is_none();
        self.first.get_or_insert(fate);
        is_first
    }

    /// The fate of the ring, once there is one.
    #[must_use]
    pub const fn fate(&self) -> Option<&Fate> {
        self.first.as_ref()
    }
}
