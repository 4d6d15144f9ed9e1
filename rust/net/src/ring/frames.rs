//! Which frames a plan calls for at this rank, and whether a call's round and buffer fit them.
//!
//! No byte moves here.

use stagelink_proto::error::ProtocolError;
use stagelink_proto::plan::Plan;
use stagelink_proto::rows::{Boundary, ExpectedRows};

use super::{Ring, misuse};
use crate::error::LinkError;
use crate::telling::broken;

impl Ring {
    pub(super) fn admit(&self, round: u64, plan: &Plan) -> Result<(), LinkError> {
        let mut rounds = self.rounds();
        let frames = self.frames(round, plan);
        let admitted = frames.and_then(|frames| {
            if frames.is_some() {
                rounds.out.check()?;
            }
            rounds.streams.admit(plan)?;
            rounds.begin(frames)
        });
        admitted.map_err(|error| {
            let place = format!("in the plan of round {round}");
            self.condemn(broken(&self.shared.name(0), 0, &error, &place).during("receive plan"))
        })
    }

    /// What goes out and what comes in for a plan; `None` for a plan without rows.
    pub(super) fn frames(
        &self,
        round: u64,
        plan: &Plan,
    ) -> Result<Option<(ExpectedRows, ExpectedRows)>, ProtocolError> {
        let last = self.world() - 1;
        let boundary = |rank| {
            if rank == last {
                Boundary::Return
            } else {
                Boundary::Forward
            }
        };
        let format = &self.terms.format;
        let out = ExpectedRows::of_plan(round, plan, boundary(self.rank()), format)?;
        let back = ExpectedRows::of_plan(round, plan, boundary(self.previous_rank()), format)?;
        Ok(out.zip(back))
    }

    /// What is to be sent for `round`, from `lent` bytes.
    pub(crate) fn frame_out(&self, round: u64, lent: usize) -> Result<ExpectedRows, LinkError> {
        self.check_process()?;
        let rounds = self.rounds();
        let frame = rounds.out.frame(round);
        let frame = frame.ok_or_else(|| not_due(round, rounds.out.next().min()))?;
        check_room(&frame, lent).map(|()| frame)
    }

    /// What is to come for `round` on the row lane, into `lent` bytes.
    pub(super) fn frame_back(&self, round: u64, lent: usize) -> Result<ExpectedRows, LinkError> {
        let next = self.rounds().back.oldest().copied();
        let frame = next.filter(|frame| frame.round == round);
        let frame = frame.ok_or_else(|| not_due(round, next.map(|frame| frame.round)))?;
        check_room(&frame, lent).map(|()| frame)
    }
}

/// The rows of a round have room in a buffer of `lent` bytes.
pub(crate) fn check_room(frame: &ExpectedRows, lent: usize) -> Result<(), LinkError> {
    if lent >= frame.memory_bytes() {
        return Ok(());
    }
    let (need, rows, round) = (frame.memory_bytes(), frame.count, frame.round);
    Err(misuse(&format!(
        "the buffer has {lent} bytes, but the {rows} rows of round {round} need {need}"
    )))
}

fn not_due(round: u64, due: Option<u64>) -> LinkError {
    let due = due.map_or_else(
        || "none are due".to_owned(),
        |due| format!("those of round {due} are due"),
    );
    misuse(&format!("rows of round {round} cannot move now: {due}"))
}
