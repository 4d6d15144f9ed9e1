//! Bytes and offsets of rows for a plan and a boundary: arithmetic only (docs/protocol.md 6.6).
//! It touches no row.

use core::ops::Range;

use crate::{
    bytes::to_usize,
    describe::RowDtype,
    error::{ProtocolError, Refusal},
    frame::{Header, Kind},
    limits,
    plan::Plan,
};

/// The format of boundary rows, the same on every stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RowsFormat {
    /// Values of one plane of one row.
    pub width: u32,
    /// Planes of a row.
    pub planes: u8,
    /// Element type.
    pub row_dtype: RowDtype,
    /// fp32 values of a tap sum a row; 0 without taps.
    pub draft_width: u32,
}

impl RowsFormat {
    /// Bytes of one row of one plane.
    #[must_use]
    pub fn plane_row_bytes(&self) -> u64 {
        u64::from(self.width).saturating_mul(u64::from(self.row_dtype.bytes()))
    }

    /// Bytes of one row's tap sum.
    #[must_use]
    pub fn tap_row_bytes(&self) -> u64 {
        u64::from(self.draft_width).saturating_mul(4)
    }

    /// Bytes of one row over all planes, with its tap sum where `taps`.
    #[must_use]
    pub fn row_bytes(&self, taps: bool) -> u64 {
        let planes = self
            .plane_row_bytes()
            .saturating_mul(u64::from(self.planes));
        planes.saturating_add(if taps { self.tap_row_bytes() } else { 0 })
    }

    /// Payload bytes of a frame of `rows` rows.
    #[must_use]
    pub fn payload_bytes(&self, rows: u32, taps: bool) -> u64 {
        self.row_bytes(taps).saturating_mul(u64::from(rows))
    }

    /// The largest payload that a round of `rows_max` rows needs: the `payload_need` of a link.
    ///
    /// Errors: `payload_too_large` where a frame cannot carry it.
    pub fn payload_need(&self, rows_max: u32) -> Result<u64, ProtocolError> {
        let need = self.payload_bytes(rows_max, self.draft_width > 0);
        let most = limits::PAYLOAD_BYTES_MAX;
        if need > u64::from(most) {
            return Err(Refusal::PayloadTooLarge.outside("bytes of a round", 0_u32, most, need));
        }
        Ok(need)
    }

    /// Where plane `plane` of a payload of `rows` rows lies.
    #[must_use]
    pub fn plane_range(&self, plane: u8, rows: u32) -> Range<u64> {
        let bytes = self.plane_row_bytes().saturating_mul(u64::from(rows));
        let start = bytes.saturating_mul(u64::from(plane));
        start..start.saturating_add(bytes)
    }

    /// Where one row of one plane lies in a payload of `rows` rows.
    #[must_use]
    pub fn row_range(&self, plane: u8, row: u32, rows: u32) -> Range<u64> {
        let bytes = self.plane_row_bytes();
        let plane = self.plane_range(plane, rows).start;
        let start = plane.saturating_add(bytes.saturating_mul(u64::from(row)));
        start..start.saturating_add(bytes)
    }

    /// Where the tap sums of a payload of `rows` rows lie, after the planes.
    #[must_use]
    pub fn taps_range(&self, rows: u32) -> Range<u64> {
        let start = self.payload_bytes(rows, false);
        start..self.payload_bytes(rows, true)
    }
}

/// Which boundary a frame crosses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Boundary {
    /// Rank i to i + 1: every row of the plan.
    Forward,
    /// Rank N - 1 to 0: the rows that return.
    Return,
    /// Rank N - 1 to 0 of a chain: a token for each row that returns.
    ReturnTokens,
}

/// What the one rows or tokens frame of a round looks like at one boundary.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExpectedRows {
    /// The round's number.
    pub round: u64,
    /// Rows or tokens of the frame.
    pub count: u32,
    /// Its payload's bytes.
    pub payload_bytes: u32,
    /// Rows or tokens.
    pub kind: Kind,
}

impl ExpectedRows {
    /// The frame that `plan` asks for at `boundary`; `None` for a plan without rows.
    ///
    /// Errors: `payload_too_large` where no frame can carry the rows.
    pub fn of_plan(
        round: u64,
        plan: &Plan,
        boundary: Boundary,
        format: &RowsFormat,
    ) -> Result<Option<Self>, ProtocolError> {
        if plan.rows() == 0 {
            return Ok(None);
        }
        let (kind, count, bytes) = match boundary {
            Boundary::Forward => (
                Kind::Rows,
                plan.rows(),
                format.payload_bytes(plan.rows(), plan.tap_sums()),
            ),
            Boundary::Return => {
                let count = plan.rows_returned();
                (
                    Kind::Rows,
                    count,
                    format.payload_bytes(count, plan.tap_sums()),
                )
            }
            Boundary::ReturnTokens => {
                let count = plan.rows_returned();
                (Kind::Tokens, count, u64::from(count).saturating_mul(4))
            }
        };
        let most = limits::PAYLOAD_BYTES_MAX;
        let payload_bytes = u32::try_from(bytes).ok().filter(|&bytes| bytes <= most);
        let payload_bytes = payload_bytes.ok_or_else(|| {
            Refusal::PayloadTooLarge.outside("bytes of a round", 0_u32, most, bytes)
        })?;
        Ok(Some(Self {
            round,
            count,
            payload_bytes,
            kind,
        }))
    }

    /// The payload's bytes as a memory size.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        to_usize(self.payload_bytes)
    }

    /// Whether the frame travels on the bulk lane.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.kind == Kind::Rows && self.payload_bytes > limits::ROW_LANE_BYTES
    }

    /// Compares a frame that came with the one that is expected.
    ///
    /// Errors, in this order: `rows_round`, `rows_count` or `tokens_count`, `rows_size` or
    /// `payload_size`.
    pub fn check(&self, header: &Header) -> Result<(), ProtocolError> {
        let (bad_count, bad_size) = match self.kind {
            Kind::Tokens => (Refusal::TokensCount, Refusal::PayloadSize),
            _ => (Refusal::RowsCount, Refusal::RowsSize),
        };
        if header.kind != self.kind {
            let (what, got) = (self.kind.name(), header.kind.name());
            return Err(Refusal::UnexpectedKind.named(what, got));
        }
        if header.sequence != self.round {
            return Err(Refusal::RowsRound.numbers("rows of round", self.round, header.sequence));
        }
        if header.count != self.count {
            return Err(bad_count.numbers("rows", self.count, header.count));
        }
        if header.payload_bytes != self.payload_bytes {
            let (expected, got) = (self.payload_bytes, header.payload_bytes);
            return Err(bad_size.numbers("payload bytes", expected, got));
        }
        Ok(())
    }
}
