//! Reads a plan's payload, each part judged before the next is read (docs/protocol.md 6.7).
//! The rules themselves are in `rules` and `entry`.

use super::{
    BLOCK_CACHE_KEYS, BLOCK_RETURNS, BLOCK_TOKEN_IDS, Plan, PlanBounds, Returns,
    entry::{ENTRY_BYTES, parse_entry},
    rules::{check_counts, check_cut_count, check_rows_sum, padding},
};
use crate::{
    bytes::{Reader, to_usize},
    error::ProtocolError,
    prefix::Message,
};

impl Plan {
    pub(super) fn parse_fields(
        &mut self,
        payload: &[u8],
        bounds: &PlanBounds,
    ) -> Result<(), ProtocolError> {
        let mut fields = Reader::new(payload);
        Message::Plan.parse(&mut fields)?;
        let (streams, cuts, blocks) = (fields.u32()?, fields.u32()?, fields.u32()?);
        check_counts(streams, blocks, bounds)?;
        fields.reserved(4)?;
        self.blocks = blocks;
        self.parse_entries(&mut fields, streams, bounds)?;
        check_cut_count(cuts, self.rows)?;
        let mut cut_fields = Reader::new(fields.take(to_usize(cuts.saturating_mul(4)))?);
        for _ in 0..cuts {
            self.cuts.push(cut_fields.u32()?);
        }
        self.check_cuts()?;
        self.parse_blocks(&mut fields, streams)?;
        fields.finish()?;
        self.count_returned();
        Ok(())
    }

    fn parse_entries(
        &mut self,
        fields: &mut Reader<'_>,
        streams: u32,
        bounds: &PlanBounds,
    ) -> Result<(), ProtocolError> {
        let mut before = None;
        let mut rows = 0_u64;
        for _ in 0..streams {
            let entry = parse_entry(&mut Reader::new(fields.take(ENTRY_BYTES)?), before, bounds)?;
            before = Some(entry.id);
            rows = rows.saturating_add(u64::from(entry.rows));
            self.entries.push(entry);
        }
        self.rows = check_rows_sum(rows, bounds)?;
        Ok(())
    }

    fn parse_blocks(&mut self, fields: &mut Reader<'_>, streams: u32) -> Result<(), ProtocolError> {
        if self.has(BLOCK_RETURNS) {
            for &byte in fields.take(to_usize(streams))? {
                self.returns.push(Returns::from_number(byte)?);
            }
            self.check_returns()?;
            fields.reserved(padding(self.returns.len()))?;
        }
        if self.has(BLOCK_TOKEN_IDS) {
            let bytes = to_usize(self.rows.saturating_mul(4));
            let mut ids = Reader::new(fields.take(bytes)?);
            for _ in 0..self.rows {
                self.token_ids.push(ids.u32()?);
            }
        }
        if self.has(BLOCK_CACHE_KEYS) {
            let mut keys = Reader::new(fields.take(to_usize(streams.saturating_mul(16)))?);
            for _ in 0..streams {
                self.cache_keys.push(keys.array()?);
            }
        }
        Ok(())
    }
}
