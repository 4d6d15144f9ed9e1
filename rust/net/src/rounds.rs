//! The rounds that have begun here and are not finished, and what their plans did to the streams.
//!
//! It sends nothing; `ring` does.

use stagelink_proto::error::{ProtocolError, Refusal};
use stagelink_proto::in_flight::InFlight;
use stagelink_proto::plan::{Op, Plan, PlanBounds};
use stagelink_proto::rows::ExpectedRows;
use stagelink_proto::streams::{Capacity, Streams};

/// The frames that are to leave, lane by lane; each lane keeps the order of its rounds.
#[derive(Debug)]
pub(crate) struct Leaving {
    most: u16,
    rows: InFlight,
    bulk: InFlight,
}

impl Leaving {
    fn new(most: u16) -> Self {
        Self {
            most,
            rows: InFlight::new(most),
            bulk: InFlight::new(most),
        }
    }

    /// Most rounds that may be unfinished at once.
    pub(crate) fn most(&self) -> u16 {
        self.most
    }

    /// Whether one more round may begin. Errors: `too_many_rounds`.
    pub(crate) fn check(&self) -> Result<(), ProtocolError> {
        let begun = self.rows.len() + self.bulk.len();
        check_begun(begun, self.most)
    }

    fn begin(&mut self, frame: ExpectedRows) -> Result<(), ProtocolError> {
        self.check()?;
        self.lane(frame.is_bulk()).begin(frame)
    }

    /// The frame of `round`, where it is the next one of its lane.
    pub(crate) fn frame(&self, round: u64) -> Option<ExpectedRows> {
        let next = [self.rows.oldest(), self.bulk.oldest()];
        let mut next = next.into_iter().flatten();
        next.find(|frame| frame.round == round).copied()
    }

    /// The rounds that are next, for error texts.
    pub(crate) fn next(&self) -> impl Iterator<Item = u64> {
        let next = [self.rows.oldest(), self.bulk.oldest()];
        next.into_iter().flatten().map(|frame| frame.round)
    }

    /// The frame of `round` has left, or is in the hands of the thread that sends it.
    pub(crate) fn finish(&mut self, round: u64) -> Result<ExpectedRows, ProtocolError> {
        let is_bulk = self.frame(round).is_some_and(|frame| frame.is_bulk());
        self.lane(is_bulk).finish(round)
    }

    fn lane(&mut self, is_bulk: bool) -> &mut InFlight {
        if is_bulk {
            &mut self.bulk
        } else {
            &mut self.rows
        }
    }
}

/// Errors: `too_many_rounds` where no round may be begun beside `begun` others.
pub(crate) fn check_begun(begun: usize, most: u16) -> Result<(), ProtocolError> {
    if begun < usize::from(most) {
        return Ok(());
    }
    let got = u64::from(most) + 1;
    Err(Refusal::TooManyRounds.outside("rounds in flight", 0_u32, u64::from(most), got))
}

/// The rounds that have begun and are not finished, and the streams' states.
#[derive(Debug)]
pub(crate) struct Rounds {
    pub(crate) streams: Streams,
    /// What is to be sent to the next rank.
    pub(crate) out: Leaving,
    /// What is to come from the previous rank on the row lane; the bulk lane keeps its own.
    pub(crate) back: InFlight,
    /// The bytes of the last plan that was sent.
    pub(crate) payload: Vec<u8>,
    /// Memory for reading them again.
    scratch: Plan,
}

impl Rounds {
    pub(crate) fn new(capacity: Capacity, rounds_in_flight_max: u16) -> Self {
        Self {
            streams: Streams::new(capacity),
            out: Leaving::new(rounds_in_flight_max),
            back: InFlight::new(rounds_in_flight_max),
            payload: Vec::with_capacity(4096),
            scratch: Plan::default(),
        }
    }
}

impl Rounds {
    /// Encode a plan, and read it as the tightest follower will.
    pub(crate) fn encode(&mut self, plan: &Plan, bounds: &PlanBounds) -> Result<(), ProtocolError> {
        self.payload.clear();
        plan.encode(&mut self.payload);
        self.scratch.parse_into(&self.payload, bounds)
    }

    /// Refuse a plan that cuts a stream's state back, where a stage cannot do that; `name` is it.
    ///
    /// Errors: `engine`, as such a stage would answer it (docs/protocol.md 6.7).
    pub(crate) fn check_no_keep(
        &self,
        plan: &Plan,
        name: impl FnOnce() -> String,
    ) -> Result<(), ProtocolError> {
        let cuts_back = plan.entries().iter().find(|entry| {
            let stream = self.streams.stream(entry.id);
            entry.op == Op::Continue && stream.is_some_and(|it| entry.accepted < it.rows)
        });
        cuts_back.map_or(Ok(()), |entry| {
            let text = format!(
                "{}: its engine cannot cut a stream's state back, which this plan does to stream \
                 {}; give that rank another --engine",
                name(),
                entry.id
            );
            Err(Refusal::Engine.text(text))
        })
    }

    /// A plan's round begins, where it has rows.
    pub(crate) fn begin(
        &mut self,
        frames: Option<(ExpectedRows, ExpectedRows)>,
    ) -> Result<(), ProtocolError> {
        if let Some((out, back)) = frames {
            self.out.begin(out)?;
            if !back.is_bulk() {
                self.back.begin(back)?;
            }
        }
        Ok(())
    }
}
