//! A round's plan: stream entries, chunk cuts and blocks (docs/protocol.md 6.7).
//! One plan alone; whether it fits the streams' states is judged in `streams`.

mod entry;

use alloc::vec::Vec;

use crate::{
    bytes::{Put as _, Reader, to_u32, to_usize},
    describe::{BLOCKS_ALL, OPS_ALL},
    error::{ProtocolError, Refusal},
    limits,
    prefix::Message,
};

use entry::{ENTRY_BYTES, check_order, parse_entry};
pub use entry::{Entry, Op, Returns};

/// Block bit 0: which rows return.
pub const BLOCK_RETURNS: u32 = 1;
/// Block bit 1: token ids.
pub const BLOCK_TOKEN_IDS: u32 = 2;
/// Block bit 2: tap sums.
pub const BLOCK_TAP_SUMS: u32 = 4;
/// Block bit 3: cache keys.
pub const BLOCK_CACHE_KEYS: u32 = 8;

/// What a plan may hold here; from the descriptions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PlanBounds {
    /// Most stream entries.
    pub streams_max: u32,
    /// Most rows of all entries together.
    pub rows_max: u32,
    /// Bit k set: op k is implemented.
    pub ops: u32,
    /// Bit k set: block k is implemented.
    pub blocks: u32,
    /// fp32 values of a tap sum; 0 refuses the tap block.
    pub draft_width: u32,
}

impl Default for PlanBounds {
    /// The protocol's own limits; every op and block; no taps.
    fn default() -> Self {
        Self {
            streams_max: limits::STREAMS_MAX,
            rows_max: limits::ROWS_MAX,
            ops: OPS_ALL,
            blocks: BLOCKS_ALL,
            draft_width: 0,
        }
    }
}

/// The parts of a plan that is still to be checked; a block is present when its `Option` is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PlanParts {
    /// Stream entries, ascending ids.
    pub entries: Vec<Entry>,
    /// Row offsets across the round, ascending.
    pub cuts: Vec<u32>,
    /// Which rows return, one an entry.
    pub returns: Option<Vec<Returns>>,
    /// Token id of every row.
    pub token_ids: Option<Vec<u32>>,
    /// The round's rows frames carry tap sums.
    pub tap_sums: bool,
    /// Prompt-cache key, one an entry.
    pub cache_keys: Option<Vec<[u8; 16]>>,
}

/// A plan that keeps every rule of section 6.7 that needs no stream state.
///
/// Its memory is kept over [`Plan::parse_into`], so that a round allocates nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    entries: Vec<Entry>,
    cuts: Vec<u32>,
    blocks: u32,
    returns: Vec<Returns>,
    token_ids: Vec<u32>,
    cache_keys: Vec<[u8; 16]>,
    rows: u32,
    rows_returned: u32,
}

impl Plan {
    /// The keep-alive: a plan with no streams.
    #[must_use]
    pub fn keep_alive() -> Self {
        Self::default()
    }

    /// Memory for the largest plan that `bounds` allows, made once at boot.
    #[must_use]
    pub fn with_capacity(bounds: &PlanBounds) -> Self {
        let streams = to_usize(bounds.streams_max.min(limits::STREAMS_MAX));
        let rows = to_usize(bounds.rows_max.min(limits::ROWS_MAX));
        Self {
            entries: Vec::with_capacity(streams),
            cuts: Vec::with_capacity(rows),
            returns: Vec::with_capacity(streams),
            ..Self::default()
        }
    }

    /// Checks parts that this side made. Errors: every stateless rule of section 6.7; `local`
    /// where a block has not one element for each entry or row.
    pub fn from_parts(parts: PlanParts, bounds: &PlanBounds) -> Result<Self, ProtocolError> {
        let mut plan = Self {
            blocks: block_bits(&parts),
            entries: parts.entries,
            cuts: parts.cuts,
            returns: parts.returns.unwrap_or_default(),
            token_ids: parts.token_ids.unwrap_or_default(),
            cache_keys: parts.cache_keys.unwrap_or_default(),
            ..Self::default()
        };
        let streams = to_u32(plan.entries.len(), "streams")?;
        check_counts(streams, plan.blocks, bounds)?;
        plan.check_entries(bounds)?;
        check_cut_count(to_u32(plan.cuts.len(), "cuts")?, plan.rows)?;
        plan.check_cuts()?;
        plan.check_block_lengths()?;
        plan.check_returns()?;
        plan.count_returned();
        Ok(plan)
    }

    /// Reads a payload into a new plan.
    pub fn parse(payload: &[u8], bounds: &PlanBounds) -> Result<Self, ProtocolError> {
        let mut plan = Self::default();
        plan.parse_into(payload, bounds)?;
        Ok(plan)
    }

    /// Reads a payload over this plan, keeping its memory.
    ///
    /// Errors: every stateless rule of section 6.7; the plan is a keep-alive then.
    pub fn parse_into(&mut self, payload: &[u8], bounds: &PlanBounds) -> Result<(), ProtocolError> {
        self.clear();
        let parsed = self.parse_fields(payload, bounds);
        if parsed.is_err() {
            self.clear();
        }
        parsed
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Message::Plan.encode(out);
        out.u32(u32::try_from(self.entries.len()).unwrap_or(0));
        out.u32(u32::try_from(self.cuts.len()).unwrap_or(0));
        out.u32(self.blocks);
        out.u32(0);
        for entry in &self.entries {
            entry.encode(out);
        }
        for &cut in &self.cuts {
            out.u32(cut);
        }
        for &returns in &self.returns {
            out.u8(returns.number());
        }
        out.zeros(padding(self.returns.len()));
        for &id in &self.token_ids {
            out.u32(id);
        }
        for key in &self.cache_keys {
            out.bytes(key);
        }
    }

    /// True for a plan with no streams.
    #[must_use]
    pub fn is_keep_alive(&self) -> bool {
        self.entries.is_empty()
    }

    /// Stream entries in ascending id order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Chunk cuts: ascending row offsets across the round.
    #[must_use]
    pub fn cuts(&self) -> &[u32] {
        &self.cuts
    }

    /// The block bits.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The returns block, if present.
    #[must_use]
    pub fn returns(&self) -> Option<&[Returns]> {
        self.has(BLOCK_RETURNS).then_some(self.returns.as_slice())
    }

    /// Which rows of the entry at `index` return, the block present or not.
    #[must_use]
    pub fn returns_of(&self, index: usize) -> Returns {
        let without = self.entries.get(index).is_none_or(|entry| entry.rows == 0);
        let absent = if without { Returns::None } else { Returns::All };
        self.returns.get(index).copied().unwrap_or(absent)
    }

    /// The token ids block, if present.
    #[must_use]
    pub fn token_ids(&self) -> Option<&[u32]> {
        self.has(BLOCK_TOKEN_IDS)
            .then_some(self.token_ids.as_slice())
    }

    /// True where the round's rows frames carry tap sums.
    #[must_use]
    pub const fn tap_sums(&self) -> bool {
        self.has(BLOCK_TAP_SUMS)
    }

    /// The cache keys block, if present.
    #[must_use]
    pub fn cache_keys(&self) -> Option<&[[u8; 16]]> {
        self.has(BLOCK_CACHE_KEYS)
            .then_some(self.cache_keys.as_slice())
    }

    /// Rows of all entries together.
    #[must_use]
    pub const fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows that return to rank 0.
    #[must_use]
    pub const fn rows_returned(&self) -> u32 {
        self.rows_returned
    }

    /// Offsets across the round of the rows that return, ascending.
    pub fn returned_offsets(&self) -> impl Iterator<Item = u32> + '_ {
        let mut start = 0_u32;
        self.entries
            .iter()
            .enumerate()
            .flat_map(move |(index, entry)| {
                let end = start.saturating_add(entry.rows);
                let first = end.saturating_sub(self.returns_of(index).count(entry.rows));
                start = end;
                first..end
            })
    }

    const fn has(&self, block: u32) -> bool {
        self.blocks & block != 0
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.cuts.clear();
        self.returns.clear();
        self.token_ids.clear();
        self.cache_keys.clear();
        (self.blocks, self.rows, self.rows_returned) = (0, 0, 0);
    }

    fn parse_fields(&mut self, payload: &[u8], bounds: &PlanBounds) -> Result<(), ProtocolError> {
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

    fn check_entries(&mut self, bounds: &PlanBounds) -> Result<(), ProtocolError> {
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

    fn check_cuts(&self) -> Result<(), ProtocolError> {
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

    fn check_returns(&self) -> Result<(), ProtocolError> {
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

    fn check_block_lengths(&self) -> Result<(), ProtocolError> {
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

    fn count_returned(&mut self) {
        let returned = self
            .entries
            .iter()
            .enumerate()
            .fold(0_u32, |sum, (index, entry)| {
                sum.saturating_add(self.returns_of(index).count(entry.rows))
            });
        self.rows_returned = returned;
    }
}

fn check_counts(streams: u32, blocks: u32, bounds: &PlanBounds) -> Result<(), ProtocolError> {
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

fn check_rows_sum(rows: u64, bounds: &PlanBounds) -> Result<u32, ProtocolError> {
    match u32::try_from(rows) {
        Ok(rows) if rows <= bounds.rows_max => Ok(rows),
        _ => Err(Refusal::TooManyRows.outside("rows", 0_u32, bounds.rows_max, rows)),
    }
}

fn check_cut_count(cuts: u32, rows: u32) -> Result<(), ProtocolError> {
    if cuts == 0 || cuts < rows {
        return Ok(());
    }
    Err(Refusal::CutOutside.outside("number of cuts", 0_u32, rows.saturating_sub(1), cuts))
}

fn block_bits(parts: &PlanParts) -> u32 {
    let bit = |present: bool, block: u32| if present { block } else { 0 };
    bit(parts.returns.is_some(), BLOCK_RETURNS)
        | bit(parts.token_ids.is_some(), BLOCK_TOKEN_IDS)
        | bit(parts.tap_sums, BLOCK_TAP_SUMS)
        | bit(parts.cache_keys.is_some(), BLOCK_CACHE_KEYS)
}

/// Zeros after the returns block, up to a multiple of 4.
fn padding(bytes: usize) -> usize {
    bytes.next_multiple_of(4).saturating_sub(bytes)
}
