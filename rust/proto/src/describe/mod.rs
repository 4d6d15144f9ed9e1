//! What a stage is: layers, boundary format, shapes, capacity, address (docs/protocol.md 6.1).
//! One description alone; whether all of them fit together is judged in `layout`.

mod choices;
mod rules;

use alloc::{string::String, vec::Vec};

use crate::{
    bytes::{Put as _, Reader, check_text, to_u32},
    error::{ProtocolError, Refusal},
    limits,
    prefix::Message,
    rows::RowsFormat,
};

pub(crate) use choices::wire_enum;
pub use choices::{KvDtype, RowDtype, Sampler};
use rules::check_bits;
pub(crate) use rules::{check_address, check_port, check_range, check_text_bytes};

/// Op bits that every stage implements: open, continue, close, cancel.
pub const OPS_LEAST: u32 = 0b1_1110;
/// All op bits: those and resume.
pub const OPS_ALL: u32 = 0b11_1110;
/// Block bits that every stage implements: returns.
pub const BLOCKS_LEAST: u32 = 0b1;
/// All block bits: returns, token ids, tap sums, cache keys.
pub const BLOCKS_ALL: u32 = 0b1111;

const BATCH_INVARIANT: u32 = 1;
const KEEP: u32 = 2;

/// What a stage says of itself at boot.
///
/// Fields are public so that an engine can fill them; [`Self::check`] holds every rule, and both
/// [`Self::parse`] and [`Self::encode`] call it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Description {
    /// The sender's rank.
    pub rank: u32,
    /// Stages of the ring.
    pub world: u32,
    /// First layer held.
    pub first: u32,
    /// One past the last layer held.
    pub end: u32,
    /// Layers of the model.
    pub layers: u32,
    /// Values of one plane of one row.
    pub width: u32,
    /// Planes of a boundary row.
    pub planes: u8,
    /// Element type of boundary rows.
    pub row_dtype: RowDtype,
    /// Element type of the KV.
    pub kv_dtype: KvDtype,
    /// Which stage samples.
    pub sampler: Sampler,
    /// Rows of a full prompt chunk.
    pub chunk_rows: u32,
    /// Most rows of one round.
    pub rows_max: u32,
    /// Most streams of one round, and slots.
    pub streams_max: u32,
    /// Most positions of one stream.
    pub context: u32,
    /// Streams that can be open at once.
    pub states: u32,
    /// Positions that the KV holds over all streams.
    pub kv_rows: u64,
    /// fp32 values of a tap sum a row; 0 without taps.
    pub draft_width: u32,
    /// Rows buffers of the sender's receiving boundary.
    pub buffers: u16,
    /// Plans with rows that may be unfinished at once.
    pub rounds_in_flight_max: u16,
    /// Bit k set: op k is implemented.
    pub ops: u32,
    /// Bit k set: plan block k is implemented.
    pub blocks: u32,
    /// A stream's bits do not depend on its neighbours or chunks, as was asked of this stage.
    pub batch_invariant: bool,
    /// Keep (rollback) is implemented.
    pub keep: bool,
    /// Bytes that the own tensors take as held.
    pub weight_bytes: u64,
    /// Process id, for people; 0 unknown.
    pub process: u32,
    /// Listening port for the boundary link.
    pub port: u16,
    /// The release that both sides were built from.
    pub engine_version: String,
    /// What computes.
    pub backend: String,
    /// The device's own name.
    pub device: String,
    /// The machine's name.
    pub host: String,
    /// Literal address that the predecessor dials.
    pub address: String,
    /// Ascending layer ids inside the range whose taps this stage adds.
    pub taps: Vec<u32>,
}

impl Description {
    /// Reads a describe payload, each field judged before the next is read.
    ///
    /// Errors: the rules of section 6.1 that need no other description and no link.
    pub fn parse(payload: &[u8]) -> Result<Self, ProtocolError> {
        Self::parse_fields(payload, |_| Ok(()))
    }

    /// Reads the payload that came on the control link of `rank`, in a ring of `world`.
    ///
    /// Errors: as [`Self::parse`], and `rank_description`, `world_description`.
    pub fn parse_of(payload: &[u8], rank: u32, world: u32) -> Result<Self, ProtocolError> {
        Self::parse_fields(payload, |it| {
            if it.rank != rank {
                return Err(Refusal::RankDescription.numbers("rank", rank, it.rank));
            }
            if it.world != world {
                return Err(Refusal::WorldDescription.numbers("world", world, it.world));
            }
            Ok(())
        })
    }

    /// Appends the payload to `out`. Errors: as [`Self::check`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        self.check()?;
        Message::Describe.encode(out);
        for value in [
            self.rank,
            self.world,
            self.first,
            self.end,
            self.layers,
            self.width,
        ] {
            out.u32(value);
        }
        out.u8(self.planes);
        out.u8(self.row_dtype.number());
        out.u8(self.kv_dtype.number());
        out.u8(self.sampler.number());
        let shapes = [
            self.chunk_rows,
            self.rows_max,
            self.streams_max,
            self.context,
            self.states,
        ];
        for value in shapes {
            out.u32(value);
        }
        out.u64(self.kv_rows);
        out.u32(self.draft_width);
        out.u16(self.buffers);
        out.u16(self.rounds_in_flight_max);
        out.u32(self.ops);
        out.u32(self.blocks);
        let invariant = if self.batch_invariant {
            BATCH_INVARIANT
        } else {
            0
        };
        out.u32(invariant | if self.keep { KEEP } else { 0 });
        out.u64(self.weight_bytes);
        out.u32(self.process);
        out.u16(self.port);
        out.u16(self.taps_count()?);
        out.zeros(36);
        for text in [
            &self.engine_version,
            &self.backend,
            &self.device,
            &self.host,
            &self.address,
        ] {
            out.short_text(text)?;
        }
        for &layer in &self.taps {
            out.u32(layer);
        }
        Ok(())
    }

    /// Every rule of section 6.1 for a description alone.
    pub fn check(&self) -> Result<(), ProtocolError> {
        self.check_place()?;
        self.check_shapes()?;
        check_port(self.port)?;
        self.check_texts()?;
        self.check_taps()
    }

    /// The boundary rows' format.
    #[must_use]
    pub const fn rows_format(&self) -> RowsFormat {
        RowsFormat {
            width: self.width,
            planes: self.planes,
            row_dtype: self.row_dtype,
            draft_width: self.draft_width,
        }
    }

    fn parse_fields(
        payload: &[u8],
        check_link: impl FnOnce(&Self) -> Result<(), ProtocolError>,
    ) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        let mut it = Self::blank();
        Message::Describe.parse(&mut fields)?;
        (it.rank, it.world) = (fields.u32()?, fields.u32()?);
        check_link(&it)?;
        (it.first, it.end, it.layers) = (fields.u32()?, fields.u32()?, fields.u32()?);
        (it.width, it.planes) = (fields.u32()?, fields.u8()?);
        it.check_place()?;
        it.row_dtype = RowDtype::from_number(fields.u8()?)?;
        it.kv_dtype = KvDtype::from_number(fields.u8()?)?;
        it.sampler = Sampler::from_number(fields.u8()?)?;
        (it.chunk_rows, it.rows_max) = (fields.u32()?, fields.u32()?);
        (it.streams_max, it.context) = (fields.u32()?, fields.u32()?);
        (it.states, it.kv_rows, it.draft_width) = (fields.u32()?, fields.u64()?, fields.u32()?);
        (it.buffers, it.rounds_in_flight_max) = (fields.u16()?, fields.u16()?);
        (it.ops, it.blocks) = (fields.u32()?, fields.u32()?);
        it.check_shapes()?;
        let taps = it.parse_properties(&mut fields)?;
        it.engine_version = fields.short_text()?;
        it.backend = fields.short_text()?;
        it.device = fields.short_text()?;
        it.host = fields.short_text()?;
        it.address = fields.short_text()?;
        it.check_texts()?;
        for _ in 0..taps {
            it.taps.push(fields.u32()?);
        }
        it.check_taps()?;
        fields.finish()?;
        Ok(it)
    }

    fn parse_properties(&mut self, fields: &mut Reader<'_>) -> Result<u16, ProtocolError> {
        let properties = fields.u32()?;
        if properties & !(BATCH_INVARIANT | KEEP) != 0 {
            return Err(Refusal::ReservedNotZero.error("expected only property bits 0 and 1"));
        }
        self.batch_invariant = properties & BATCH_INVARIANT != 0;
        self.keep = properties & KEEP != 0;
        (self.weight_bytes, self.process) = (fields.u64()?, fields.u32()?);
        self.port = fields.u16()?;
        check_port(self.port)?;
        let taps = fields.u16()?;
        check_range("taps", taps, 0..=limits::TAPS_MAX)?;
        fields.reserved(36)?;
        Ok(taps)
    }

    /// What parsing fills in; no field of it is legal.
    const fn blank() -> Self {
        Self {
            rank: 0,
            world: 0,
            first: 0,
            end: 0,
            layers: 0,
            width: 0,
            planes: 0,
            row_dtype: RowDtype::Float32,
            kv_dtype: KvDtype::Float32,
            sampler: Sampler::First,
            chunk_rows: 0,
            rows_max: 0,
            streams_max: 0,
            context: 0,
            states: 0,
            kv_rows: 0,
            draft_width: 0,
            buffers: 0,
            rounds_in_flight_max: 0,
            ops: 0,
            blocks: 0,
            batch_invariant: false,
            keep: false,
            weight_bytes: 0,
            process: 0,
            port: 0,
            engine_version: String::new(),
            backend: String::new(),
            device: String::new(),
            host: String::new(),
            address: String::new(),
            taps: Vec::new(),
        }
    }

    fn check_place(&self) -> Result<(), ProtocolError> {
        if !(limits::WORLD_MIN..=limits::WORLD_MAX).contains(&self.world) {
            let (least, most) = (limits::WORLD_MIN, limits::WORLD_MAX);
            return Err(Refusal::WorldDescription.outside("world", least, most, self.world));
        }
        if self.rank >= self.world {
            let last = self.world.saturating_sub(1);
            return Err(Refusal::RankDescription.outside("rank", 0_u32, last, self.rank));
        }
        if self.first >= self.end {
            let (what, most) = ("first layer", self.end.saturating_sub(1));
            return Err(Refusal::RangeEmpty.outside(what, 0_u32, most, self.first));
        }
        check_range("layers", self.layers, 1..=limits::LAYERS_MAX)?;
        check_range("width", self.width, 1..=limits::WIDTH_MAX)?;
        check_range("planes", self.planes, 1..=limits::PLANES_MAX)
    }

    fn check_shapes(&self) -> Result<(), ProtocolError> {
        check_range("rows_max", self.rows_max, 1..=limits::ROWS_MAX)?;
        check_range("chunk_rows", self.chunk_rows, 1..=self.rows_max)?;
        check_range("streams_max", self.streams_max, 1..=limits::STREAMS_MAX)?;
        check_range("context", self.context, 1..=limits::CONTEXT_MAX)?;
        check_range("draft_width", self.draft_width, 0..=limits::DRAFT_WIDTH_MAX)?;
        check_range("buffers", self.buffers, 1..=limits::BUFFERS_MAX)?;
        let (what, most) = ("rounds_in_flight_max", limits::ROUNDS_IN_FLIGHT_MAX);
        check_range(what, self.rounds_in_flight_max, 1..=most)?;
        check_bits("ops", self.ops, OPS_LEAST, OPS_ALL)?;
        check_bits("blocks", self.blocks, BLOCKS_LEAST, BLOCKS_ALL)
    }

    fn check_texts(&self) -> Result<(), ProtocolError> {
        let texts = [
            &self.engine_version,
            &self.backend,
            &self.address,
            &self.device,
            &self.host,
        ];
        for text in texts {
            check_text(text)?;
            check_text_bytes(text)?;
        }
        if self.engine_version.is_empty() || self.backend.is_empty() || self.address.is_empty() {
            let text = "expected an engine_version, a backend and an address";
            return Err(Refusal::BadText.error(text));
        }
        check_address(&self.address)
    }

    fn check_taps(&self) -> Result<(), ProtocolError> {
        self.taps_count()?;
        let inside = self
            .taps
            .iter()
            .all(|layer| (self.first..self.end).contains(layer));
        if !inside || !self.taps.is_sorted_by(|before, after| before < after) {
            let text = "expected ascending tap layers inside the own range";
            return Err(Refusal::BadLimit.error(text));
        }
        Ok(())
    }

    fn taps_count(&self) -> Result<u16, ProtocolError> {
        let got = to_u32(self.taps.len(), "taps")?;
        check_range("taps", got, 0..=u32::from(limits::TAPS_MAX))?;
        Ok(u16::try_from(got).unwrap_or(limits::TAPS_MAX))
    }
}
