//! The simulated engine: arithmetic on one number a row, and the rows that come and leave.
//! It knows nothing of plans but their rows.

use std::time::Duration;

use stagelink_proto::{
    ProtocolError,
    frame::Kind,
    plan::{Entry, Plan},
    progress::Phase,
};

use super::{Job, RING_IN, RING_OUT, Rank};
use crate::pipe::Wire;

impl Rank {
    /// Rows are here: the lead compares them, a follower computes.
    pub(super) fn rows(
        &mut self,
        round: u64,
        payload: &[u8],
        now: Duration,
    ) -> Result<(), ProtocolError> {
        self.awaited.finish(round)?;
        let values: Vec<u64> = payload
            .chunks_exact(8)
            .map(|row| u64::from_le_bytes(row.try_into().unwrap()))
            .collect();
        let plan = self.plans.remove(&round).unwrap();
        if self.rank == 0 {
            let whole = first_values(&plan);
            let whole = (0..self.world).fold(whole, |rows, rank| compute(rank, &rows));
            assert_eq!(values, returned(&plan, &whole), "the split is the whole");
            self.rows_checked += plan.rows_returned();
        } else {
            self.start(round, plan, values, now);
        }
        Ok(())
    }

    pub(super) fn start(&mut self, round: u64, plan: Plan, values: Vec<u64>, now: Duration) {
        let begins = self.jobs.back().map_or(now, |job| job.done_at.max(now));
        let done_at = match self.manner.wedged_in {
            Some(wedged) if wedged <= round => Duration::from_secs(1 << 30),
            _ => begins + self.manner.compute,
        };
        self.phase = Phase::Computing;
        self.jobs.push_back(Job {
            round,
            plan,
            values,
            done_at,
        });
    }

    pub(super) fn compute(&mut self, now: Duration) {
        while self.jobs.front().is_some_and(|job| job.done_at <= now) {
            let mut job = self.jobs.pop_front().unwrap();
            job.values = compute(self.rank, &job.values);
            self.counter += 1;
            self.outgoing.push_back(job);
        }
        if self.opened && self.jobs.is_empty() {
            self.phase = Phase::Idle;
        }
    }

    pub(super) fn send_rows(
        &mut self,
        wire: &mut Wire,
        now: Duration,
    ) -> Result<(), ProtocolError> {
        while self.credits.is_ready() && !self.outgoing.is_empty() {
            let job = self.outgoing.pop_front().unwrap();
            self.credits.take()?;
            let is_last = self.rank + 1 == self.world;
            let values = if is_last {
                returned(&job.plan, &job.values)
            } else {
                job.values
            };
            let payload: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            let expected = self.owed.finish(job.round)?;
            assert_eq!(expected.memory_bytes(), payload.len());
            let link = self.links.get_mut(&RING_OUT).unwrap();
            link.send(
                wire,
                now,
                (Kind::Rows, Some(job.round), expected.count),
                &payload,
            )?;
            if self.rank != 0 {
                self.give_credit(wire, now)?;
            }
        }
        Ok(())
    }

    pub(super) fn give_credit(
        &mut self,
        wire: &mut Wire,
        now: Duration,
    ) -> Result<(), ProtocolError> {
        self.buffers.release(1)?;
        let link = self.links.get_mut(&RING_IN).unwrap();
        link.send(wire, now, (Kind::Credit, None, 1), &[])
    }
}

/// The lead's embedding: one number for each row of a plan.
pub(super) fn first_values(plan: &Plan) -> Vec<u64> {
    let row = |entry: &Entry, row: u32| u64::from(entry.id) << 32 | u64::from(entry.first + row);
    let entries = plan.entries().iter();
    entries
        .flat_map(|entry| (0..entry.rows).map(move |it| row(entry, it)))
        .collect()
}

/// A rank's layers.
pub(super) fn compute(rank: u32, rows: &[u64]) -> Vec<u64> {
    let layer =
        |row: &u64| row.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7) ^ u64::from(rank);
    rows.iter().map(layer).collect()
}

pub(super) fn returned(plan: &Plan, rows: &[u64]) -> Vec<u64> {
    plan.returned_offsets()
        .map(|offset| rows[usize::try_from(offset).unwrap()])
        .collect()
}
