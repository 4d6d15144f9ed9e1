//! What happened in a run, and the rules that every history keeps.
//! It sees what ranks do, never their machines; a broken rule is noted, not raised.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use stagelink_proto::plan::{Entry, Op, Plan};

/// Where one buffer of a boundary stands (transport: posted, filled, lent, free again).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Buffer {
    Free,
    Filling(u64),
    Ready(u64),
    /// Lent to the engine, with what it held then.
    InUse(u64, u64),
}

/// One boundary, named by the rank that receives.
#[derive(Default)]
struct Boundary {
    /// Frames that left and have not arrived: round and content.
    under_way: VecDeque<(u64, u64)>,
    buffers: Vec<Buffer>,
    credits_taken: u64,
    credits_received: u64,
    credits_given: u64,
    filled: u64,
    released: u64,
}

/// A stream as a rank must know it, by a model of its own.
#[derive(Clone, Copy)]
struct Stream {
    position: u32,
    rows: u32,
    generation: u32,
}

#[derive(Default)]
struct Rank {
    admitted: usize,
    streams: BTreeMap<u32, Stream>,
    ended_at: Option<Duration>,
}

pub(crate) struct History {
    /// Broken rules, oldest first.
    pub(crate) broken: Vec<String>,
    /// What happened, where it is to be printed.
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) now: Duration,
    boundaries: Vec<Boundary>,
    ranks: Vec<Rank>,
    plans: Vec<(u64, Plan)>,
}

impl History {
    pub(crate) fn new(world: u32, buffers: u16) -> Self {
        let boundary = |_| Boundary {
            buffers: vec![Buffer::Free; usize::from(buffers)],
            ..Boundary::default()
        };
        Self {
            broken: Vec::new(),
            trace: None,
            now: Duration::ZERO,
            boundaries: (0..world).map(boundary).collect(),
            ranks: (0..world).map(|_| Rank::default()).collect(),
            plans: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>13.6} s  {}", now.as_secs_f64(), text()));
        }
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.broken.is_empty()
    }

    pub(crate) fn must(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds && self.broken.len() < 8 {
            self.broken.push(text());
        }
    }

    /// The lead has sent a plan that it admitted itself.
    pub(crate) fn planned(&mut self, round: u64, plan: &Plan) {
        self.plans.push((round, plan.clone()));
        self.admitted(0, round, plan);
    }

    /// A rank has taken a plan: the lead's next one, against states that fit it.
    pub(crate) fn admitted(&mut self, rank: u32, round: u64, plan: &Plan) {
        self.note(|| {
            format!(
                "rank {rank} takes the plan of round {round}: {}",
                outline(plan)
            )
        });
        let own = &mut self.ranks[rank as usize];
        let expected = self.plans.get(own.admitted);
        let is_next = expected.is_some_and(|(at, it)| *at == round && it == plan);
        own.admitted += 1;
        let fits = plan
            .entries()
            .iter()
            .all(|entry| apply(&mut own.streams, entry));
        self.must(fits, || {
            format!("rank {rank} took a stale plan in round {round}: {plan:?}")
        });
        self.must(is_next, || {
            format!("rank {rank} took a plan of round {round} that is not due")
        });
    }

    /// A frame is started to `rank`.
    pub(crate) fn sent(&mut self, rank: u32, round: u64, rows: &[u8]) {
        self.note(|| format!("round {round} leaves for rank {rank}, {} bytes", rows.len()));
        let it = &mut self.boundaries[rank as usize];
        it.under_way.push_back((round, content(rows)));
        it.credits_taken += 1;
        let most = it.buffers.len() as u64 + it.credits_received;
        let taken = it.credits_taken;
        self.must(taken <= most, || {
            format!("a frame to rank {rank} was started without a credit: {taken} of {most}")
        });
    }

    pub(crate) fn credit_given(&mut self, rank: u32, count: u32) {
        let it = &mut self.boundaries[rank as usize];
        it.credits_given += u64::from(count);
        let (given, released) = (it.credits_given, it.released);
        self.must(given <= released, || {
            format!("rank {rank} gave {given} credits for {released} released buffers")
        });
    }

    pub(crate) fn credit_received(&mut self, rank: u32, count: u32) {
        let it = &mut self.boundaries[rank as usize];
        it.credits_received += u64::from(count);
        let (given, received, taken) = (it.credits_given, it.credits_received, it.credits_taken);
        self.must(received <= given && received <= taken, || {
            format!("of rank {rank}, {received} credits were taken for {given}, {taken} frames")
        });
    }

    /// A frame begins to be written into a buffer.
    pub(crate) fn filling(&mut self, rank: u32, buffer: usize, round: u64) {
        let it = &mut self.boundaries[rank as usize];
        let was = std::mem::replace(&mut it.buffers[buffer], Buffer::Filling(round));
        it.filled += 1;
        self.must(was == Buffer::Free, || {
            format!("rank {rank}: buffer {buffer} is written for round {round} while {was:?}")
        });
    }

    /// Rows are complete in the buffer that was written: in order, once, unchanged.
    pub(crate) fn delivered(&mut self, rank: u32, buffer: usize, round: u64, rows: &[u8]) {
        self.note(|| format!("round {round} is in buffer {buffer} of rank {rank}"));
        let ended = self.ranks[rank as usize].ended_at;
        self.must(ended.is_none(), || {
            format!("rank {rank}: rows of round {round} were delivered after its end")
        });
        let it = &mut self.boundaries[rank as usize];
        let was = std::mem::replace(&mut it.buffers[buffer], Buffer::Ready(round));
        let sent = it.under_way.pop_front();
        self.must(was == Buffer::Filling(round), || {
            format!("rank {rank}: round {round} was delivered into a buffer that was {was:?}")
        });
        let came = Some((round, content(rows)));
        self.must(sent == came, || {
            format!("rank {rank}: round {round} is not what was sent: {sent:?}, came {came:?}")
        });
    }

    /// The engine gets a buffer.
    pub(crate) fn lent(&mut self, rank: u32, buffer: usize, round: u64, rows: &[u8]) {
        let it = &mut self.boundaries[rank as usize].buffers[buffer];
        let was = std::mem::replace(it, Buffer::InUse(round, content(rows)));
        self.must(was == Buffer::Ready(round), || {
            format!("rank {rank}: round {round} was handed over from a buffer that was {was:?}")
        });
    }

    /// The engine is done with a buffer.
    pub(crate) fn released(&mut self, rank: u32, buffer: usize, round: u64, rows: &[u8]) {
        let it = &mut self.boundaries[rank as usize];
        let was = std::mem::replace(&mut it.buffers[buffer], Buffer::Free);
        it.released += 1;
        self.must(was == Buffer::InUse(round, content(rows)), || {
            format!("rank {rank}: buffer {buffer} of round {round} changed while lent: {was:?}")
        });
    }

    /// The ring has ended on a rank.
    pub(crate) fn ended(&mut self, rank: u32) {
        let now = self.now;
        let was = self.ranks[rank as usize].ended_at.replace(now);
        self.must(was.is_none(), || format!("rank {rank} ended twice"));
    }

    /// The orderly end: nothing is left over anywhere.
    pub(crate) fn finished(&mut self) {
        let plans = self.plans.len();
        let mut texts = Vec::new();
        for (rank, own) in self.ranks.iter().enumerate() {
            if own.admitted != plans || !own.streams.is_empty() {
                texts.push(format!(
                    "rank {rank} took {} of {plans} plans",
                    own.admitted
                ));
            }
        }
        for (rank, it) in self.boundaries.iter().enumerate() {
            let counts = [it.credits_taken, it.filled, it.released, it.credits_given];
            let is_free = it.buffers.iter().all(|buffer| *buffer == Buffer::Free);
            if !is_free || counts.iter().any(|count| *count != it.filled) {
                texts.push(format!(
                    "rank {rank}: sent, filled, released, given are {counts:?}"
                ));
            }
        }
        self.must(texts.is_empty(), || {
            format!("left over at the end: {texts:?}")
        });
    }
}

/// Applies an entry to a rank's streams; false where it does not fit them.
fn apply(streams: &mut BTreeMap<u32, Stream>, entry: &Entry) -> bool {
    let known = streams.get(&entry.id).copied();
    let after = Stream {
        position: entry.first,
        rows: entry.rows,
        generation: 0,
    };
    match (entry.op, known) {
        (Op::Open, None) => streams.insert(entry.id, after).is_none() && entry.first == 0,
        (Op::Continue, Some(was)) => {
            let cut = entry.accepted < was.rows;
            let generation = was.generation + u32::from(cut);
            streams.insert(
                entry.id,
                Stream {
                    generation,
                    ..after
                },
            );
            entry.generation == was.generation && entry.first == was.position + entry.accepted
        }
        (Op::Close | Op::Cancel, Some(was)) => {
            streams.remove(&entry.id);
            entry.generation == was.generation
        }
        _ => false,
    }
}

/// What a buffer holds, as one number.
fn content(rows: &[u8]) -> u64 {
    let pieces = rows.chunks(8);
    pieces.fold(rows.len() as u64, |sum, piece| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        crate::draw::mix(sum ^ u64::from_le_bytes(word)).wrapping_add(1)
    })
}

/// A plan in few words.
fn outline(plan: &Plan) -> String {
    let each = plan.entries().iter().map(|it| {
        let (id, op, rows, kept) = (it.id, it.op, it.rows, it.accepted);
        let (first, generation) = (it.first, it.generation);
        format!("{op:?} {id} at {first} with {rows}, {kept} kept, generation {generation}")
    });
    each.collect::<Vec<_>>().join("; ")
}
