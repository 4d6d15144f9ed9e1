//! The simulated engine: arithmetic on one number a row, with a state a position and stream.
//! A state that was not cut back, a row that is missing or doubled, changes every later row.

use std::collections::BTreeMap;
use std::time::Duration;

use stagelink_proto::ProtocolError;
use stagelink_proto::plan::{Entry, Op, Plan};
use stagelink_proto::progress::Phase;

use super::Node;
use crate::draw::mix;
use crate::mutant::Mutant;
use crate::ring::Sim;

/// When a forward that hangs is done.
const NEVER: Duration = Duration::from_secs(1 << 40);

/// Rows of a round, before or after this rank's layers.
pub(crate) struct Job {
    pub(crate) round: u64,
    plan: Plan,
    rows: Vec<u64>,
    /// The posted buffer that they came in.
    pub(crate) buffer: Option<usize>,
}

/// A forward that runs.
pub(crate) struct Forward {
    job: Job,
    began: Duration,
    pub(crate) done_at: Duration,
}

/// One rank's layers.
#[derive(Clone)]
pub(crate) struct Engine {
    rank: u32,
    states: BTreeMap<u32, Vec<u64>>,
    pub(crate) forwards: u64,
}

impl Engine {
    pub(crate) fn new(rank: u32) -> Self {
        Self {
            rank,
            states: BTreeMap::new(),
            forwards: 0,
        }
    }

    /// Applies a plan's entries to the states and turns its rows into rows.
    pub(crate) fn run(&mut self, plan: &Plan, rows: &[u64], forgets_keeps: bool) -> Vec<u64> {
        let mut rows = rows.iter();
        let mut out = Vec::new();
        for entry in plan.entries() {
            if matches!(entry.op, Op::Close | Op::Cancel) {
                self.states.remove(&entry.id);
                continue;
            }
            let state = self.states.entry(entry.id).or_default();
            if !forgets_keeps {
                state.truncate(entry.first as usize);
            }
            for row in rows.by_ref().take(entry.rows as usize) {
                let before = state.last().copied().unwrap_or(0);
                let after = mix(before ^ row.rotate_left(self.rank + 1)).wrapping_add(*row);
                state.push(after);
                out.push(mix(after ^ u64::from(self.rank)));
            }
        }
        out
    }
}

impl Node {
    /// Begins what is due: plans strictly in order, each when its rows are here.
    pub(super) fn begin_forward(&mut self, sim: &mut Sim) {
        while self.forward.is_none()
            && let Some((&round, plan)) = self.plans.first_key_value()
        {
            let (rows, buffer) = if plan.rows() == 0 {
                (Vec::new(), None)
            } else if let Some(work) = &mut self.work {
                (work.embedded.remove(&round).unwrap_or_default(), None)
            } else if self.ready.front().is_some_and(|it| it.0 == round)
                && let Some((_, buffer)) = self.ready.pop_front()
            {
                (numbers(&self.memory[buffer].bytes), Some(buffer))
            } else {
                return;
            };
            let Some((_, plan)) = self.plans.pop_first() else {
                return;
            };
            if plan.rows() == 0 {
                self.engine.run(&plan, &[], false);
                continue;
            }
            if let Some(buffer) = buffer {
                self.lend(round, buffer, sim);
            }
            self.engine.forwards += 1;
            let takes = self.forward_time(sim);
            self.phase = Phase::Computing;
            let job = Job {
                round,
                plan,
                rows,
                buffer,
            };
            self.forward = Some(Forward {
                job,
                began: sim.now,
                done_at: sim.now + takes,
            });
        }
    }

    pub(super) fn end_forward(&mut self, sim: &Sim) {
        let Some(forward) = self.forward.take_if(|it| it.done_at <= sim.now) else {
            return;
        };
        let mut job = forward.job;
        let forgets = sim.is(Mutant::ForgetsKeeps) && self.rank != 0;
        job.rows = self.engine.run(&job.plan, &job.rows, forgets);
        self.counter += 1;
        self.phase = Phase::Idle;
        self.outgoing.push_back(job);
    }

    /// How long the forward that runs has been running.
    pub(super) fn forward_since(&self) -> Option<Duration> {
        self.forward.as_ref().map(|forward| forward.began)
    }

    fn lend(&mut self, round: u64, buffer: usize, sim: &mut Sim) {
        sim.history
            .lent(self.rank, buffer, round, &self.memory[buffer].bytes);
        if sim.is(Mutant::ReleasesEarly) && self.buffers.release(1).is_ok() {
            self.memory[buffer].free();
            let _ = self.give_credit(1, sim);
        }
    }

    fn forward_time(&mut self, sim: &mut Sim) -> Duration {
        if self.is_hanging {
            self.hung_at.get_or_insert(sim.now);
            return NEVER;
        }
        if let Some((nth, time)) = self.manner.slow
            && nth + 1 == self.engine.forwards
        {
            return time;
        }
        let half = self.manner.compute_us / 2;
        Duration::from_micros(half) + sim.draw.micros(self.manner.compute_us.max(1))
    }

    /// The round's rows are back at the lead.
    pub(super) fn returned(
        &mut self,
        round: u64,
        buffer: usize,
        sim: &mut Sim,
    ) -> Result<(), ProtocolError> {
        sim.history
            .lent(0, buffer, round, &self.memory[buffer].bytes);
        let came = numbers(&self.memory[buffer].bytes);
        if let Some(work) = &mut self.work {
            work.returned(round, &came, &mut sim.history);
        }
        if sim.is(Mutant::ReleasesEarly) {
            self.buffers.release(1)?;
            self.give_credit(1, sim)?;
        }
        self.release(round, buffer, sim)
    }
}

/// The embedding of one row: where it stands, and what was sampled before.
pub(crate) fn embed(entry: &Entry, row: u32, sampled: u64) -> u64 {
    mix(u64::from(entry.id) << 32 | u64::from(entry.first + row)) ^ sampled
}

/// The rows that return of all rows of a plan.
pub(crate) fn returned(plan: &Plan, rows: &[u64]) -> Vec<u64> {
    let each = plan.returned_offsets();
    each.filter_map(|offset| rows.get(offset as usize).copied())
        .collect()
}

pub(crate) fn payload(job: &Job, is_last: bool) -> Vec<u8> {
    let returning = is_last.then(|| returned(&job.plan, &job.rows));
    let rows = returning.as_ref().unwrap_or(&job.rows);
    rows.iter().flat_map(|row| row.to_le_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let rows = bytes.chunks_exact(8);
    rows.map(|row| row.try_into().map_or(0, u64::from_le_bytes))
        .collect()
}
