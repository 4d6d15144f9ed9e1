//! Judges vectors of kind `link`: what happens at one end of one link, in order.
//! Streams and layouts have vectors of their own.

use alloc::{format, string::ToString as _};
use core::time::Duration;

use serde_json::Value;

use super::{BadVector, Context, Outcome, Vector, frame::read_frame, missing};
use crate::{
    conversation::{Conversation, LinkEnd, LinkState},
    frame::{FrameRules, Kind},
    in_flight::{Buffers, Credits, InFlight},
    keepalive::Watch,
    message::{Message, Surroundings},
    rows::ExpectedRows,
};

/// One end of one link with everything that it counts.
struct End {
    conversation: Conversation,
    rules: FrameRules,
    around: Surroundings,
    credits: Credits,
    buffers: Buffers,
    rounds: InFlight,
    watch: Watch,
    round_sent: u64,
}

pub(super) fn judge(vector: &Vector<'_>) -> Result<(), Outcome> {
    let mut end = End::new(&vector.context)?;
    let mut files = vector.files.iter();
    for step in vector.context.list("steps") {
        match step.as_str() {
            Some("receive") => end.receive(files.next().ok_or_else(|| missing("a file"))?)?,
            Some(step) => {
                let kind = step.strip_prefix("send ").and_then(Kind::from_name);
                let kind = kind.ok_or_else(|| BadVector(format!("no such step: {step:?}")))?;
                end.send(kind)?;
            }
            None => return Err(missing("steps").into()),
        }
    }
    Ok(())
}

impl End {
    fn new(context: &Context<'_>) -> Result<Self, Outcome> {
        let own_rank: u32 = context.number("own_rank", 0)?;
        let world: u32 = context.number("world", 3)?;
        let is_bulk = context.number::<u8>("lane", 0)? != 0;
        let chain = context.number::<u8>("sampler", 1)? == 2;
        let is_last = own_rank == world.saturating_sub(1);
        let end = match context.text("end") {
            "lead_control" => LinkEnd::LeadControl,
            "follower_control" => LinkEnd::FollowerControl,
            "ring_acceptor" if is_bulk => LinkEnd::BulkAcceptor,
            "ring_connector" if is_bulk => LinkEnd::BulkConnector,
            "ring_acceptor" => LinkEnd::RingAcceptor {
                tokens: chain && own_rank == 0,
            },
            "ring_connector" => LinkEnd::RingConnector {
                tokens: chain && is_last,
            },
            other => return Err(BadVector(format!("no such end: {other:?}")).into()),
        };
        let state = match context.text("state") {
            "linked" => LinkState::Linked,
            "described" => LinkState::Described,
            "placed" => LinkState::Placed,
            "ready" => LinkState::Ready,
            "open" => LinkState::Open,
            "refusing" => LinkState::Refusing,
            other => return Err(BadVector(format!("no such state: {other:?}")).into()),
        };
        let mut conversation = Conversation::at(end, state, context.number("sequence", 2)?);
        let first_round = context.number("first_round", 1)?;
        if state == LinkState::Open {
            conversation.opened(first_round);
        }
        let mut rounds = InFlight::new(64);
        for round in context.list("rounds") {
            rounds.begin(expected_rows(round, &conversation)?)?;
        }
        let buffers = context.number("buffers", 2)?;
        let checksums = context.flag("checksum", true);
        let rank = context.number("rank", 0)?;
        Ok(Self {
            conversation,
            rules: FrameRules {
                checksums,
                ..FrameRules::default()
            },
            around: Surroundings {
                rank,
                world,
                ..Surroundings::default()
            },
            credits: if is_bulk {
                Credits::none_posted(buffers)
            } else {
                Credits::new(buffers)
            },
            buffers: if is_bulk {
                Buffers::none_posted(buffers)
            } else {
                Buffers::new(buffers)
            },
            rounds,
            watch: Watch::new(Duration::ZERO),
            round_sent: first_round.saturating_sub(1),
        })
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), Outcome> {
        let Self {
            conversation,
            rules,
            around,
            buffers,
            rounds,
            ..
        } = self;
        let (header, payload) = read_frame(bytes, *rules, |header| {
            conversation.receive(header)?;
            if matches!(header.kind, Kind::Rows | Kind::Tokens) {
                buffers.fill()?;
                rounds.check_rows(header)?;
            }
            Ok(())
        })?;
        match Message::parse(&header, payload, around)? {
            Message::Credit => self.credits.receive(header.count)?,
            Message::Rows | Message::Tokens(_) => {
                self.rounds.finish(header.sequence)?;
            }
            Message::Progress(progress) => self.watch.report(&progress, Duration::ZERO)?,
            Message::Open(open) => self.conversation.opened(open.first_round()),
            _ => {}
        }
        Ok(())
    }

    fn send(&mut self, kind: Kind) -> Result<(), Outcome> {
        match kind {
            Kind::Rows | Kind::Tokens => self.credits.take()?,
            Kind::Credit => self.buffers.release(1)?,
            _ => {}
        }
        self.round_sent = self
            .round_sent
            .saturating_add(u64::from(kind.carries_round()));
        self.conversation
            .send(kind, Some(self.round_sent))
            .map_err(|error| BadVector(error.to_string()))?;
        Ok(())
    }
}

/// `[round, count, payload_bytes]`.
fn expected_rows(round: &Value, conversation: &Conversation) -> Result<ExpectedRows, BadVector> {
    let number = |index: usize| round.get(index).and_then(Value::as_u64);
    let narrow = |index| number(index).and_then(|it| u32::try_from(it).ok());
    let kind = if conversation.takes_tokens() {
        Kind::Tokens
    } else {
        Kind::Rows
    };
    match (number(0), narrow(1), narrow(2)) {
        (Some(round), Some(count), Some(payload_bytes)) => Ok(ExpectedRows {
            round,
            count,
            payload_bytes,
            kind,
        }),
        _ => Err(missing("rounds")),
    }
}
