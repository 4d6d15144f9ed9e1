//! The rules of a plan as a whole: counts, order of entries, cuts, blocks (docs/protocol.md 6.7).
//! The rules of one entry are in `entry`.

use super::{
    BLOCK_CACHE_KEYS, BLOCK_RETURNS, BLOCK_TAP_SUMS, BLOCK_TOKEN_IDS, Plan, PlanBounds, PlanParts,
    Returns, entry::check_order,
};
use crate::{
    bytes::to_usize,
    describe::BLOCKS_ALL,
    error::{ProtocolError, Refusal},
};

impl Plan {
    pub(super) fn check_entries(&mut self, bounds: &PlanBounds) -> Result<(), ProtocolError> {
        let mut before = None;
        for entry in &self.entries {
            check_order(before, entry.id)?;
            entry.check(bounds)?;
            before = Some(entry.id);
        }
        let rows = self.entries.iter().map(|entry| u64::from(entry.rows)).sum();
        self.rows = check_rows_sum(rows, bounds)?;
        Ok(())
    }

    pub(super) fn check_cuts(&self) -> Result<(), ProtocolError> {
        let mut before = None;
        for &cut in &self.cuts {
            if before.is_some_and(|before| cut <= before) {
                return Err(Refusal::CutOrder.error("expected strictly ascending cuts"));
            }
            if !(1..self.rows).contains(&cut) {
                let last = self.rows.saturating_sub(1);
                return Err(Refusal::CutOutside.outside("cut", 1_u32, last, cut));
            }
            before = Some(cut);
        }
        Ok(())
    }

    pub(super) fn check_returns(&self) -> Result<(), ProtocolError> {
        let wrong = self
            .entries
            .iter()
            .zip(&self.returns)
            .find(|(entry, returns)| entry.rows == 0 && **returns != Returns::None);
        if let Some((entry, returns)) = wrong {
            let (expected, got) = (Returns::None.number(), returns.number());
            let (expected, got) = (u32::from(expected), u32::from(got));
            return Err(Refusal::BadReturns.stream(entry.id, "returns", expected, got));
        }
        Ok(())
    }

    pub(super) fn check_block_lengths(&self) -> Result<(), ProtocolError> {
        let (streams, rows) = (self.entries.len(), to_usize(self.rows));
        let fits = |block, length: usize, expected| !self.has(block) || length == expected;
        if fits(BLOCK_RETURNS, self.returns.len(), streams)
            && fits(BLOCK_TOKEN_IDS, self.token_ids.len(), rows)
            && fits(BLOCK_CACHE_KEYS, self.cache_keys.len(), streams)
        {
            return Ok(());
        }
        Err(Refusal::Local.error("expected one element of a block for each entry or row"))
    }
}

pub(super) fn check_counts(
    streams: u32,
    blocks: u32,
    bounds: &PlanBounds,
) -> Result<(), ProtocolError> {
    if streams > bounds.streams_max {
        let most = bounds.streams_max;
        return Err(Refusal::TooManyStreams.outside("streams", 0_u32, most, streams));
    }
    if blocks & !BLOCKS_ALL != 0 {
        return Err(Refusal::UnknownBlock.outside("blocks", 0_u32, BLOCKS_ALL, blocks));
    }
    if blocks & !bounds.blocks != 0 {
        let most = bounds.blocks;
        return Err(Refusal::UnsupportedBlock.outside("blocks", 0_u32, most, blocks));
    }
    if blocks != 0 && streams == 0 {
        return Err(Refusal::UnsupportedBlock.numbers("blocks of a keep-alive", 0_u32, blocks));
    }
    if blocks & BLOCK_TAP_SUMS != 0 && bounds.draft_width == 0 {
        return Err(Refusal::UnsupportedBlock.error("tap sums without a draft_width"));
    }
    Ok(())
}

pub(super) fn check_rows_sum(rows: u64, bounds: &PlanBounds) -> Result<u32, ProtocolError> {
    match u32::try_from(rows) {
        Ok(rows) if rows <= bounds.rows_max => Ok(rows),
        _ => Err(Refusal::TooManyRows.outside("rows", 0_u32, bounds.rows_max, rows)),
    }
}

pub(super) fn check_cut_count(cuts: u32, rows: u32) -> Result<(), ProtocolError> {
    if cuts == 0 || cuts < rows {
        return Ok(());
    }
    Err(Refusal::CutOutside.outside("number of cuts", 0_u32, rows.saturating_sub(1), cuts))
}

pub(super) fn block_bits(parts: &PlanParts) -> u32 {
    let bit = |present: bool, block: u32| if present { block } else { 0 };
    bit(parts.returns.is_some(), BLOCK_RETURNS)
        | bit(parts.token_ids.is_some(), BLOCK_TOKEN_IDS)
        | bit(parts.tap_sums, BLOCK_TAP_SUMS)
        | bit(parts.cache_keys.is_some(), BLOCK_CACHE_KEYS)
}

/// Zeros after the returns block, up to a multiple of 4.
pub(super) fn padding(bytes: usize) -> usize {
    bytes.next_multiple_of(4).saturating_sub(bytes)
}
