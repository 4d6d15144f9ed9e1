//! One control link: messages out, messages in, and what its peer was last heard of.
//!
//! It judges bytes and order only; what a message leads to is decided in `control`.

use std::time::Duration;

use stagelink_proto::cancel::Cancel;
use stagelink_proto::conversation::{Conversation, LinkEnd, LinkState};
use stagelink_proto::describe::Description;
use stagelink_proto::error::{ProtocolError, Refusal};
use stagelink_proto::fate::Fate as FateMessage;
use stagelink_proto::figures::Figures;
use stagelink_proto::frame::{Header, Kind};
use stagelink_proto::keepalive::Watch;
use stagelink_proto::open::Open;
use stagelink_proto::plan::{Plan, PlanBounds};
use stagelink_proto::progress::Progress;
use stagelink_proto::ready::Ready;
use stagelink_proto::roster::Roster;

use crate::connection::{Connection, Fill, LinkedSocket};
use crate::stuck::Seen;

/// What a reader of payloads must know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) world: u32,
    pub(crate) layers: u32,
    pub(crate) bounds: PlanBounds,
}

/// A message that arrived, parsed.
#[derive(Debug)]
pub(crate) enum Message {
    Describe(Box<Description>),
    Roster(Roster),
    Ready(Ready),
    Open(Open),
    Plan(u64, Plan),
    Progress,
    Cancel,
    Figures(Figures),
    Fate(FateMessage),
    Bye,
}

/// A control link whose handshake is made.
#[derive(Debug)]
pub(crate) struct ControlLink {
    /// The other end's rank.
    pub(crate) rank: u32,
    pub(crate) connection: Connection,
    conversation: Conversation,
    checksums: bool,
    /// When a frame was last heard.
    pub(crate) heard: Duration,
    last: Option<Progress>,
    /// What it did as far as other messages than progress tell.
    last_sign: Sign,
    watch: Watch,
    /// Plans that were begun, for the memory of further ones.
    pub(crate) spares: Vec<Plan>,
    /// When progress was last told; between two reports nothing is known of the counter.
    reported: Duration,
    /// The other side has closed, after a bye.
    pub(crate) is_gone: bool,
}

impl ControlLink {
    pub(crate) fn new(linked: LinkedSocket, end: LinkEnd, rank: u32, now: Duration) -> Self {
        Self {
            rank,
            checksums: linked.rules.checksums,
            connection: Connection::new(linked),
            conversation: Conversation::new(end),
            heard: now,
            last: None,
            last_sign: Sign::Linked,
            watch: Watch::new(now),
            spares: Vec::new(),
            reported: now,
            is_gone: false,
        }
    }

    pub(crate) fn state(&self) -> LinkState {
        self.conversation.state()
    }

    /// Queue one message and send what fits.
    ///
    /// Errors: `local` where it may not be sent now, or where the peer has left 16 MiB unread.
    pub(crate) fn send(
        &mut self,
        kind: Kind,
        round: Option<u64>,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        let sequence = self.conversation.send(kind, round)?;
        let header = Header::for_payload(kind, sequence, 0, payload, self.checksums)?;
        self.connection.push(&header, payload)?;
        self.connection.flush();
        Ok(())
    }

    /// Both ends agreed on the first round.
    pub(crate) fn opened(&mut self, first_round: u64) {
        self.conversation.opened(first_round);
    }

    /// Read what is there and hand on every whole message; true when the peer has closed.
    pub(crate) fn read(
        &mut self,
        now: Duration,
        reading: &Reading,
        mut take: impl FnMut(Message),
    ) -> Result<bool, ProtocolError> {
        let fill = self.connection.fill();
        while let Some((header, payload)) = self.connection.next_frame()? {
            self.heard = now;
            self.conversation.receive(&header)?;
            let message = parse(&header, payload, self.rank, reading, &mut self.spares)?;
            self.last_sign = self.last_sign.after(&message);
            match message {
                Parsed::Message(Message::Open(open)) => {
                    self.conversation.opened(open.first_round());
                    take(Message::Open(open));
                }
                Parsed::Message(message) => take(message),
                Parsed::Progress(progress) => {
                    self.note(progress, now)?;
                    take(Message::Progress);
                }
            }
        }
        Ok(fill == Fill::Closed)
    }

    /// `computing round 812`, as last told.
    pub(crate) fn last_seen(&self) -> String {
        match (self.last_sign, self.last) {
            (Sign::Planned(round), _) => format!("planning round {round}"),
            (Sign::Told, Some(last)) => crate::activity::describe(last.phase, last.round),
            (Sign::Ready, _) => "ready".to_owned(),
            (Sign::Linked | Sign::Told, _) => "joining".to_owned(),
        }
    }

    /// What its engine does, and since when; nothing before its first word.
    pub(crate) fn seen(&self) -> Option<Seen> {
        self.last.map(|last| Seen {
            phase: last.phase,
            round: last.round,
            since: self.watch.since(),
        })
    }

    /// How long the counter may stand still, where reports further apart than that show the same.
    pub(crate) fn stalled(&self) -> Option<Duration> {
        self.watch.check(self.reported).err()?;
        self.last?.busy_limit()
    }

    fn note(&mut self, progress: Progress, now: Duration) -> Result<(), ProtocolError> {
        self.watch.report(&progress, now)?;
        self.last = Some(progress);
        self.reported = now;
        Ok(())
    }
}

/// Which message last told what the other side does.
#[derive(Clone, Copy, Debug)]
enum Sign {
    Linked,
    Ready,
    Told,
    Planned(u64),
}

impl Sign {
    /// Keep-alives and the like leave it as it was.
    fn after(self, parsed: &Parsed) -> Self {
        match parsed {
            Parsed::Progress(_) => Self::Told,
            Parsed::Message(Message::Ready(_)) => Self::Ready,
            Parsed::Message(Message::Plan(round, plan)) if !plan.is_keep_alive() => {
                Self::Planned(*round)
            }
            Parsed::Message(_) => self,
        }
    }
}

enum Parsed {
    Message(Message),
    Progress(Progress),
}

fn parse(
    header: &Header,
    payload: &[u8],
    rank: u32,
    reading: &Reading,
    spares: &mut Vec<Plan>,
) -> Result<Parsed, ProtocolError> {
    let message = match header.kind {
        Kind::Progress => return Progress::parse(payload, rank).map(Parsed::Progress),
        Kind::Describe => Message::Describe(Box::new(Description::parse_of(
            payload,
            rank,
            reading.world,
        )?)),
        Kind::Roster => Message::Roster(Roster::parse(payload, reading.world, reading.layers)?),
        Kind::Ready => Message::Ready(Ready::parse(payload, rank)?),
        Kind::Open => Message::Open(Open::parse(payload)?),
        Kind::Plan => {
            let mut plan = spares.pop().unwrap_or_default();
            plan.parse_into(payload, &reading.bounds)?;
            Message::Plan(header.sequence, plan)
        }
        Kind::Figures => Message::Figures(Figures::parse(payload, rank)?),
        Kind::Cancel => Cancel::parse(payload).map(|_| Message::Cancel)?,
        Kind::Fate => Message::Fate(FateMessage::parse(payload, reading.world)?),
        Kind::Bye => Message::Bye,
        // The state table has refused every other kind.
        _ => return Err(Refusal::UnexpectedKind.error("expected a message of a control link")),
    };
    Ok(Parsed::Message(message))
}
