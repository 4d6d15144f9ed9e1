//! Each stream's position and generation; admits a plan or refuses it (docs/protocol.md 6.7, 7).
//! It holds no KV; a refused plan has changed nothing here, so that an engine changes nothing.

use alloc::vec::Vec;

use crate::{
    bytes::to_usize,
    error::{ProtocolError, Refusal},
    limits,
    plan::{Entry, Op, Plan},
};

/// What a stage's states can hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capacity {
    /// Most positions of one stream.
    pub context: u32,
    /// Streams that can be open at once.
    pub states: u32,
    /// Positions of all open streams together.
    pub kv_rows: u64,
}

/// The state of one open stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stream {
    /// The stream's id.
    pub id: u32,
    /// Position of the first row of its last round.
    pub first: u32,
    /// Rows of its last round.
    pub rows: u32,
    /// Counter of its state, as the next entry must carry it.
    pub generation: u32,
}

impl Stream {
    /// The position after its last round, before any of it is cut back.
    #[must_use]
    pub const fn position(&self) -> u32 {
        self.first.saturating_add(self.rows)
    }
}

/// All streams of one stage.
#[derive(Clone, Debug)]
pub struct Streams {
    capacity: Capacity,
    /// Ascending ids; opens ascend, so that a new one goes to the end.
    open: Vec<Stream>,
    opened_last: Option<u32>,
}

/// What a plan's entries would do, entry by entry.
struct Tally {
    open: u32,
    opened_last: Option<u32>,
    kv_rows: u64,
}

impl Streams {
    /// No stream is open; memory for the streams is made here.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        let places = to_usize(capacity.states.min(limits::STREAMS_MAX));
        Self {
            capacity,
            open: Vec::with_capacity(places),
            opened_last: None,
        }
    }

    /// Checks the whole plan, then applies it.
    ///
    /// Errors: as [`Self::check`]; nothing has changed then.
    pub fn admit(&mut self, plan: &Plan) -> Result<(), ProtocolError> {
        self.check(plan)?;
        for entry in plan.entries() {
            self.apply(entry);
        }
        Ok(())
    }

    /// Checks a plan against the streams without applying it.
    ///
    /// Errors: `unknown_stream`, `stream_reused`, `streams_full`, `stale_generation`,
    /// `accepted_outside`, `wrong_position`, `context_overrun`, and for the whole plan `kv_full`.
    pub fn check(&self, plan: &Plan) -> Result<(), ProtocolError> {
        let open = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        let kv_rows = self.positions();
        let mut tally = Tally {
            open,
            opened_last: self.opened_last,
            kv_rows,
        };
        for entry in plan.entries() {
            match entry.op {
                Op::Open | Op::Resume => self.check_new(entry, &mut tally)?,
                Op::Continue => self.check_continue(entry, &mut tally)?,
                Op::Close | Op::Cancel => {
                    let stream = self.open_stream(entry)?;
                    tally.open = tally.open.saturating_sub(1);
                    tally.kv_rows = tally.kv_rows.saturating_sub(u64::from(stream.position()));
                }
            }
        }
        if tally.kv_rows > self.capacity.kv_rows {
            let most = self.capacity.kv_rows;
            return Err(Refusal::KvFull.outside("positions", 0_u32, most, tally.kv_rows));
        }
        Ok(())
    }

    /// The open streams, ascending ids.
    #[must_use]
    pub fn open(&self) -> &[Stream] {
        &self.open
    }

    /// One open stream.
    #[must_use]
    pub fn stream(&self, id: u32) -> Option<&Stream> {
        let index = self
            .open
            .binary_search_by_key(&id, |stream| stream.id)
            .ok()?;
        self.open.get(index)
    }

    /// Positions of all open streams together.
    #[must_use]
    pub fn positions(&self) -> u64 {
        self.open
            .iter()
            .map(|stream| u64::from(stream.position()))
            .sum()
    }

    fn check_new(&self, entry: &Entry, tally: &mut Tally) -> Result<(), ProtocolError> {
        if let Some(last) = tally.opened_last.filter(|&last| entry.id <= last) {
            let (what, least) = ("an id of at least", last.saturating_add(1));
            return Err(Refusal::StreamReused.stream(entry.id, what, least, entry.id));
        }
        if tally.open >= self.capacity.states {
            let (what, states) = ("open streams of at most", self.capacity.states);
            let got = tally.open.saturating_add(1);
            return Err(Refusal::StreamsFull.stream(entry.id, what, states, got));
        }
        self.check_context(entry)?;
        tally.opened_last = Some(entry.id);
        tally.open = tally.open.saturating_add(1);
        let end = u64::from(entry.first).saturating_add(u64::from(entry.rows));
        tally.kv_rows = tally.kv_rows.saturating_add(end);
        Ok(())
    }

    fn check_continue(&self, entry: &Entry, tally: &mut Tally) -> Result<(), ProtocolError> {
        let stream = self.open_stream(entry)?;
        if entry.accepted > stream.rows {
            let what = "accepted rows of at most";
            let (most, got) = (stream.rows, entry.accepted);
            return Err(Refusal::AcceptedOutside.stream(entry.id, what, most, got));
        }
        let kept = stream.first.saturating_add(entry.accepted);
        if entry.first != kept {
            return Err(Refusal::WrongPosition.stream(entry.id, "first", kept, entry.first));
        }
        self.check_context(entry)?;
        let end = u64::from(kept).saturating_add(u64::from(entry.rows));
        let others = tally.kv_rows.saturating_sub(u64::from(stream.position()));
        tally.kv_rows = others.saturating_add(end);
        Ok(())
    }

    fn open_stream(&self, entry: &Entry) -> Result<&Stream, ProtocolError> {
        let stream = self.stream(entry.id).ok_or_else(|| {
            Refusal::UnknownStream.text(alloc::format!("stream {} is not open", entry.id))
        })?;
        if entry.generation != stream.generation {
            let (expected, got) = (stream.generation, entry.generation);
            let what = "generation";
            return Err(Refusal::StaleGeneration.stream(entry.id, what, expected, got));
        }
        Ok(stream)
    }

    fn check_context(&self, entry: &Entry) -> Result<(), ProtocolError> {
        let context = self.capacity.context;
        match entry.first.checked_add(entry.rows) {
            Some(end) if end <= context => Ok(()),
            end => {
                let (what, got) = ("positions of at most", end.unwrap_or(u32::MAX));
                Err(Refusal::ContextOverrun.stream(entry.id, what, context, got))
            }
        }
    }

    /// Applies an entry that `check` has taken.
    fn apply(&mut self, entry: &Entry) {
        let place = self
            .open
            .binary_search_by_key(&entry.id, |stream| stream.id);
        let stream = Stream {
            id: entry.id,
            first: entry.first,
            rows: entry.rows,
            generation: u32::from(entry.op == Op::Resume),
        };
        match (entry.op, place) {
            (Op::Open | Op::Resume, Err(index)) => {
                self.opened_last = Some(entry.id);
                self.open.insert(index, stream);
            }
            (Op::Continue, Ok(index)) => {
                if let Some(open) = self.open.get_mut(index) {
                    let cut_back = u32::from(entry.accepted < open.rows);
                    let generation = open.generation.wrapping_add(cut_back);
                    *open = Stream {
                        generation,
                        ..stream
                    };
                }
            }
            (Op::Close | Op::Cancel, Ok(index)) => {
                self.open.remove(index);
            }
            _ => debug_assert!(false, "check has taken the plan"),
        }
    }
}
