//! The simulated lead: plans of prompt chunks, decodes, keeps and cancels; and what must come back.
//! It ends the ring in order when every stream is done.

use std::collections::BTreeMap;
use std::time::Duration;

use stagelink_proto::cancel::Cancel;
use stagelink_proto::frame::Kind;
use stagelink_proto::limits::BYE_WAIT;
use stagelink_proto::plan::{Entry, Op, Plan, PlanParts, Returns};
use stagelink_proto::rows::Boundary;
use stagelink_proto::streams::Streams;
use stagelink_proto::{ProtocolError, Refusal};

use super::boot::FIRST_ROUND;
use super::engine::{Engine, embed, returned};
use super::{Node, RING_IN};
use crate::draw::Draw;
use crate::faults::Rule;
use crate::history::History;
use crate::options::{Options, StreamOptions};
use crate::ring::Sim;

/// What the lead still has to do, and the whole model to compare with.
pub(crate) struct Work {
    streams: BTreeMap<u32, Stream>,
    whole: Vec<Engine>,
    pub(super) embedded: BTreeMap<u64, Vec<u64>>,
    expected: BTreeMap<u64, (Plan, Vec<u64>)>,
    chunk_rows: u32,
    skip_percent: u64,
    next_round: u64,
    /// It has sent a plan that must be refused.
    is_rogue: bool,
    pub(crate) plans_sent: u64,
    pub(crate) rows_checked: u64,
}

struct Stream {
    options: StreamOptions,
    prompt_left: u32,
    decodes: u32,
    in_flight: u32,
    /// The last row that came back.
    sampled: u64,
}

impl Stream {
    /// Its client is gone, or its last token is there.
    fn is_ending(&self) -> bool {
        let gone = self
            .options
            .cancels_after
            .is_some_and(|after| self.decodes >= after);
        self.prompt_left == 0 && (gone || self.decodes >= self.options.decodes)
    }
}

impl Work {
    pub(super) fn new(options: &Options) -> Self {
        let stream = |options: &StreamOptions| Stream {
            options: *options,
            prompt_left: options.prompt_rows,
            decodes: 0,
            in_flight: 0,
            sampled: 0,
        };
        Self {
            streams: (1..).zip(options.streams.iter().map(stream)).collect(),
            whole: (0..options.world).map(Engine::new).collect(),
            embedded: BTreeMap::new(),
            expected: BTreeMap::new(),
            chunk_rows: options.chunk_rows,
            skip_percent: options.skip_percent,
            next_round: FIRST_ROUND,
            is_rogue: false,
            plans_sent: 0,
            rows_checked: 0,
        }
    }

    /// Every stream is done and nothing is on the ring.
    pub(crate) fn is_done(&self) -> bool {
        self.streams.is_empty() && self.expected.is_empty()
    }

    pub(super) fn wake_at(&self, now: Duration) -> Option<Duration> {
        let later = self.streams.values().map(|stream| stream.options.arrives);
        later.filter(|&at| at > now).min()
    }

    /// The next plan, from the streams that can go on.
    fn next_plan(&mut self, states: &Streams, now: Duration, draw: &mut Draw) -> PlanParts {
        let mut parts = PlanParts::default();
        let mut kinds = Vec::new();
        // Opens ascend, so that a stream waits for all before it.
        let mut may_open = true;
        for (&id, stream) in &mut self.streams {
            let is_new = states.stream(id).is_none();
            let waits = stream.in_flight > 0 && stream.prompt_left == 0;
            let sits_out = draw.chance(self.skip_percent) || stream.options.arrives > now;
            if waits || sits_out || (is_new && !may_open) {
                may_open &= !is_new;
                continue;
            }
            let (entry, kind) = stream.next_entry(id, states, self.chunk_rows, draw);
            parts.entries.push(entry);
            kinds.push(kind);
        }
        parts.returns = Some(kinds);
        parts
    }

    /// A plan leaves: embeds its rows, and computes what must come back.
    fn begin(&mut self, round: u64, plan: &Plan) {
        let mut rows = Vec::new();
        for entry in plan.entries() {
            let sampled = self
                .streams
                .get(&entry.id)
                .map_or(0, |stream| stream.sampled);
            rows.extend((0..entry.rows).map(|row| embed(entry, row, sampled)));
            if entry.rows == 0 {
                self.streams.remove(&entry.id);
            } else if let Some(stream) = self.streams.get_mut(&entry.id) {
                stream.in_flight += 1;
            }
        }
        let each = self.whole.iter_mut();
        let whole = each.fold(rows.clone(), |rows, engine| engine.run(plan, &rows, false));
        if plan.rows() > 0 {
            self.embedded.insert(round, rows);
            self.expected
                .insert(round, (plan.clone(), returned(plan, &whole)));
        }
    }

    /// A round is complete: the split is the whole, bit for bit.
    pub(super) fn returned(&mut self, round: u64, came: &[u64], history: &mut History) {
        let Some((plan, expected)) = self.expected.remove(&round) else {
            history.must(false, || {
                format!("round {round} came back and was not under way")
            });
            return;
        };
        history.must(expected == came, || {
            format!("round {round} is not what the whole model says")
        });
        self.rows_checked += came.len() as u64;
        let mut came = came.iter();
        for (index, entry) in plan.entries().iter().enumerate() {
            let count = plan.returns_of(index).count(entry.rows) as usize;
            let last = came.by_ref().take(count).last();
            if let Some(stream) = self.streams.get_mut(&entry.id).filter(|_| entry.rows > 0) {
                stream.in_flight -= 1;
                stream.sampled = last.copied().unwrap_or(stream.sampled);
            }
        }
    }
}

impl Stream {
    fn next_entry(
        &mut self,
        id: u32,
        states: &Streams,
        chunk_rows: u32,
        draw: &mut Draw,
    ) -> (Entry, Returns) {
        let state = states.stream(id).copied();
        let generation = state.map_or(0, |state| state.generation);
        let blank = Entry {
            id,
            op: if state.is_none() {
                Op::Open
            } else {
                Op::Continue
            },
            first: 0,
            rows: 0,
            accepted: 0,
            resume: 0,
            generation,
        };
        if self.prompt_left > 0 {
            let rows = self.prompt_left.min(chunk_rows);
            self.prompt_left -= rows;
            let kind = if self.prompt_left == 0 {
                Returns::Last
            } else {
                Returns::None
            };
            let (first, accepted) = state.map_or((0, 0), |it| (it.position(), it.rows));
            return (
                Entry {
                    first,
                    rows,
                    accepted,
                    ..blank
                },
                kind,
            );
        }
        if self.is_ending() {
            let cancelled = self.decodes < self.options.decodes;
            let op = if cancelled { Op::Cancel } else { Op::Close };
            return (Entry { op, ..blank }, Returns::None);
        }
        let (before, was) = state.map_or((0, 0), |it| (it.first, it.rows));
        // Of a draft some rows are kept; of a prompt chunk or a single row all are.
        let is_draft = self.decodes > 0 && was > 1;
        let accepted = if is_draft {
            draw.small(0, was + 1)
        } else {
            was
        };
        self.decodes += 1;
        let rows = draw.small(1, self.options.decode_rows_max + 1);
        (
            Entry {
                first: before + accepted,
                rows,
                accepted,
                ..blank
            },
            Returns::All,
        )
    }
}

impl Node {
    /// The lead's scheduler: as many rounds as may be on the ring; all streams closed is the end.
    pub(super) fn lead(&mut self, sim: &mut Sim) -> Result<(), ProtocolError> {
        while self.owed.check().is_ok() && self.awaited.check().is_ok() {
            let Some(work) = self.work.as_mut().filter(|work| !work.is_rogue) else {
                break;
            };
            let parts = work.next_plan(&self.streams, sim.now, &mut sim.draw);
            if parts.entries.is_empty() {
                break;
            }
            let plan = Plan::from_parts(parts, &self.bounds())?;
            self.advise_cancels(&plan, sim)?;
            self.streams.admit(&plan)?;
            let round = self.send_plan(&plan, sim)?;
            sim.history.planned(round, &plan);
            if let Some(work) = &mut self.work {
                work.begin(round, &plan);
                work.plans_sent += 1;
            }
            self.begin(round, plan, Boundary::Return, Boundary::Forward)?;
            self.break_plan(sim)?;
        }
        if self.work.as_ref().is_some_and(Work::is_done) && self.bye_due.is_none() {
            self.bye_due = Some(sim.now + BYE_WAIT);
            for (_, link) in self.links.iter_mut().filter(|(key, _)| **key != RING_IN) {
                link.send(sim, (Kind::Bye, None, 0), &[])?;
            }
        }
        Ok(())
    }

    pub(super) fn send_plan(&mut self, plan: &Plan, sim: &mut Sim) -> Result<u64, ProtocolError> {
        let Some(work) = &mut self.work else {
            return Err(Refusal::Local.error("only the lead sends plans"));
        };
        let round = work.next_round;
        work.next_round += 1;
        self.keep_alive.sent(sim.now);
        let mut payload = Vec::new();
        plan.encode(&mut payload);
        self.send_to_followers(sim, (Kind::Plan, Some(round), 0), &payload)?;
        Ok(round)
    }

    fn advise_cancels(&mut self, plan: &Plan, sim: &mut Sim) -> Result<(), ProtocolError> {
        let cancelled = plan.entries().iter().filter(|entry| entry.op == Op::Cancel);
        for entry in cancelled {
            let advice = Cancel { stream: entry.id }.encode();
            self.send_to_followers(sim, (Kind::Cancel, None, 0), &advice)?;
        }
        Ok(())
    }

    /// Breaks a rule of plans, where that is this rank's fault.
    fn break_plan(&mut self, sim: &mut Sim) -> Result<(), ProtocolError> {
        match self.rule {
            Some(Rule::SkippedRound) => {
                let frame = |round| (Kind::Plan, Some(round), 0);
                let Some(work) = &mut self.work else {
                    return Ok(());
                };
                let round = work.next_round + 1;
                for (_, link) in self.links.iter_mut().filter(|(key, _)| **key < self.world) {
                    link.conversation.opened(round);
                    let mut payload = Vec::new();
                    Plan::keep_alive().encode(&mut payload);
                    link.send(sim, frame(round), &payload)?;
                }
            }
            Some(Rule::StalePlan) => {
                let old = self
                    .streams
                    .open()
                    .iter()
                    .find(|stream| stream.generation > 0);
                let Some(stream) = old.copied() else {
                    return Ok(());
                };
                let entry = Entry {
                    id: stream.id,
                    op: Op::Close,
                    first: stream.position(),
                    rows: 0,
                    accepted: 0,
                    resume: 0,
                    generation: stream.generation - 1,
                };
                let parts = PlanParts {
                    entries: vec![entry],
                    ..PlanParts::default()
                };
                let plan = Plan::from_parts(parts, &self.bounds())?;
                self.send_plan(&plan, sim)?;
            }
            _ => return Ok(()),
        }
        self.rule = None;
        self.broke_at = Some(sim.now);
        if let Some(work) = &mut self.work {
            work.is_rogue = true;
        }
        Ok(())
    }
}
