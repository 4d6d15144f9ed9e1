//! A round's plan: stream entries, chunk cuts and blocks (docs/protocol.md 6.7).
//! One plan alone; whether it fits the streams' states is judged in `streams`.

mod entry;
mod parse;
mod rules;

use alloc::vec::Vec;

use crate::{
    bytes::{Put as _, to_u32, to_usize},
    describe::{BLOCKS_ALL, OPS_ALL},
    error::ProtocolError,
    limits,
    prefix::Message,
};

pub use entry::{Entry, Op, Returns};
use rules::{block_bits, check_counts, check_cut_count, padding};

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
