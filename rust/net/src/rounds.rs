//! The rounds that have begun here and are not finished, and what their plans did to the streams.
//!
//! It sends nothing; `ring` does.

use stagelink_proto::error::{ProtocolError, Refusal};
use stagelink_proto::in_flight::InFlight;
use stagelink_proto::plan::{Op, Plan, PlanBounds};
use stagelink_proto::rows::ExpectedRows;
use stagelink_proto::streams::{Capacity, Streams};

/// The rounds that have begun and are not finished, and the streams' states.
#[derive(Debug)]
pub(crate) struct Rounds {
    pub(crate) streams: Streams,
    /// What is to be sent to the next rank.
    pub(crate) out: InFlight,
    /// What is to come from the previous rank.
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
            out: InFlight::new(rounds_in_flight_max),
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

    /// Refuse a plan that cuts a stream's state back, where a stage cannot do that.
    ///
    /// Errors: `engine`, as such a stage would answer it (docs/protocol.md 6.7).
    pub(crate) fn check_no_keep(&self, plan: &Plan) -> Result<(), ProtocolError> {
        let cuts_back = plan.entries().iter().find(|entry| {
            let stream = self.streams.stream(entry.id);
            entry.op == Op::Continue && stream.is_some_and(|it| entry.accepted < it.rows)
        });
        cuts_back.map_or(Ok(()), |entry| {
            let text = format!("stream {} is cut back, which a stage cannot do", entry.id);
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
            self.back.begin(back)?;
        }
        Ok(())
    }
}
