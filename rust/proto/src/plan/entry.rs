//! One stream entry of a plan: what a round does with one stream (docs/protocol.md 6.7).
//! It knows the rules of its op's row, not the stream's state.

use alloc::vec::Vec;

use super::PlanBounds;
use crate::{
    bytes::{Put as _, Reader},
    error::{ProtocolError, Refusal},
};

/// Bytes of one entry.
pub(super) const ENTRY_BYTES: usize = 28;

/// What a plan does to a stream.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Op {
    /// A new stream at position 0.
    Open,
    /// More rows of an open stream.
    Continue,
    /// The end of a stream.
    Close,
    /// The end of a stream of which nothing more is delivered.
    Cancel,
    /// A new stream from a kept prompt state.
    Resume,
}

impl Op {
    /// The number on the wire, and the bit of a description's `ops`.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Continue => 2,
            Self::Close => 3,
            Self::Cancel => 4,
            Self::Resume => 5,
        }
    }

    /// The op of a number. Errors: `bad_op`.
    pub fn from_number(number: u8) -> Result<Self, ProtocolError> {
        match number {
            1 => Ok(Self::Open),
            2 => Ok(Self::Continue),
            3 => Ok(Self::Close),
            4 => Ok(Self::Cancel),
            5 => Ok(Self::Resume),
            _ => Err(Refusal::BadOp.outside("op", 1_u8, 5_u8, number)),
        }
    }

    const fn bit(self) -> u32 {
        match self {
            Self::Open => 1 << 1,
            Self::Continue => 1 << 2,
            Self::Close => 1 << 3,
            Self::Cancel => 1 << 4,
            Self::Resume => 1 << 5,
        }
    }
}

/// Which rows of an entry return to rank 0.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Returns {
    /// Every row.
    All,
    /// The last row.
    Last,
    /// No row.
    None,
}

impl Returns {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::All => 1,
            Self::Last => 2,
            Self::None => 3,
        }
    }

    /// The choice of a number. Errors: `bad_returns`.
    pub fn from_number(number: u8) -> Result<Self, ProtocolError> {
        match number {
            1 => Ok(Self::All),
            2 => Ok(Self::Last),
            3 => Ok(Self::None),
            _ => Err(Refusal::BadReturns.outside("returns", 1_u8, 3_u8, number)),
        }
    }

    /// How many of `rows` rows return.
    #[must_use]
    pub const fn count(self, rows: u32) -> u32 {
        match self {
            Self::All => rows,
            Self::Last if rows > 0 => 1,
            Self::Last | Self::None => 0,
        }
    }
}

/// What one round does with one stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The stream's id.
    pub id: u32,
    /// What is done.
    pub op: Op,
    /// Position of the first row.
    pub first: u32,
    /// Rows of this stream in this round.
    pub rows: u32,
    /// Rows of the stream's previous round that are kept.
    pub accepted: u32,
    /// The kept state's position, else 0.
    pub resume: u32,
    /// The state's generation before this entry is applied.
    pub generation: u32,
}

impl Entry {
    /// The rules of the op's row in section 6.7, in the order of the fields.
    pub(super) fn check(&self, bounds: &PlanBounds) -> Result<(), ProtocolError> {
        if bounds.ops & self.op.bit() == 0 {
            let text = alloc::format!("stream {}: op {:?} is not done here", self.id, self.op);
            return Err(Refusal::UnsupportedOp.text(text));
        }
        match self.op {
            Op::Open => {
                self.must_be_zero(Refusal::OpenFirst, "first", self.first)?;
                self.check_new()?;
                self.must_be_zero(Refusal::ResumeNotZero, "resume", self.resume)?;
                self.must_be_zero(Refusal::OpenGeneration, "generation", self.generation)
            }
            Op::Continue => {
                self.check_has_rows()?;
                self.must_be_zero(Refusal::ResumeNotZero, "resume", self.resume)
            }
            Op::Close | Op::Cancel => {
                self.must_be_zero(Refusal::RowsWithClose, "rows", self.rows)?;
                self.must_be_zero(Refusal::CloseAccepted, "accepted", self.accepted)?;
                self.must_be_zero(Refusal::ResumeNotZero, "resume", self.resume)
            }
            Op::Resume => {
                self.check_new()?;
                if !(1..=self.first).contains(&self.resume) {
                    let (refusal, what) = (Refusal::ResumePoint, "resume of 1 up to first");
                    return Err(refusal.stream(self.id, what, self.first, self.resume));
                }
                self.must_be_zero(Refusal::OpenGeneration, "generation", self.generation)
            }
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.id);
        out.u8(self.op.number());
        out.zeros(3);
        for value in [
            self.first,
            self.rows,
            self.accepted,
            self.resume,
            self.generation,
        ] {
            out.u32(value);
        }
    }

    fn check_new(&self) -> Result<(), ProtocolError> {
        self.check_has_rows()?;
        self.must_be_zero(Refusal::OpenAccepted, "accepted", self.accepted)
    }

    fn check_has_rows(&self) -> Result<(), ProtocolError> {
        if self.rows == 0 {
            return Err(Refusal::RowsMissing.stream(self.id, "rows of at least", 1, 0));
        }
        Ok(())
    }

    fn must_be_zero(
        &self,
        refusal: Refusal,
        what: &'static str,
        value: u32,
    ) -> Result<(), ProtocolError> {
        if value == 0 {
            Ok(())
        } else {
            Err(refusal.stream(self.id, what, 0, value))
        }
    }
}

pub(super) fn parse_entry(
    fields: &mut Reader<'_>,
    before: Option<u32>,
    bounds: &PlanBounds,
) -> Result<Entry, ProtocolError> {
    let id = fields.u32()?;
    check_order(before, id)?;
    let op = Op::from_number(fields.u8()?)?;
    fields.reserved(3)?;
    let entry = Entry {
        id,
        op,
        first: fields.u32()?,
        rows: fields.u32()?,
        accepted: fields.u32()?,
        resume: fields.u32()?,
        generation: fields.u32()?,
    };
    entry.check(bounds)?;
    Ok(entry)
}

pub(super) fn check_order(before: Option<u32>, id: u32) -> Result<(), ProtocolError> {
    match before {
        Some(before) if id <= before => {
            let least = before.saturating_add(1);
            Err(Refusal::StreamsOrder.outside("stream id", least, u32::MAX, id))
        }
        _ => Ok(()),
    }
}
