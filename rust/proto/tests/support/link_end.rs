//! One end of one simulated link: the real incoming machine and conversation over a pipe.
//! What a frame means its rank decides.

use std::time::Duration;

use stagelink_proto::{
    ProtocolError, Refusal,
    conversation::{Conversation, LinkEnd as Side, LinkState},
    frame::{FrameRules, Header, Kind},
    incoming::{Event, Incoming},
};

use crate::pipe::Wire;

pub(crate) struct LinkEnd {
    pub(crate) peer: u32,
    pub(crate) conversation: Conversation,
    incoming: Incoming,
    pipe_in: usize,
    pipe_out: usize,
    payload: Vec<u8>,
    unread: Vec<u8>,
    /// A header that was seen and not yet taken: rows that came before their plan.
    pub(crate) header: Option<Header>,
    closed: bool,
}

/// What one end saw.
pub(crate) enum Arrival {
    Nothing,
    /// A header; `take` says that its payload may be read.
    Header(Header),
    Frame(Header, Vec<u8>),
    /// The connection ended without a bye or fate.
    Lost,
}

impl LinkEnd {
    pub(crate) fn new(peer: u32, side: Side, (pipe_in, pipe_out): (usize, usize)) -> Self {
        Self {
            peer,
            conversation: Conversation::new(side),
            incoming: Incoming::new(FrameRules::default()),
            pipe_in,
            pipe_out,
            payload: Vec::new(),
            unread: Vec::new(),
            header: None,
            closed: false,
        }
    }

    pub(crate) fn send(
        &mut self,
        wire: &mut Wire,
        now: Duration,
        (kind, round, count): (Kind, Option<u64>, u32),
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        if self.closed {
            return Ok(());
        }
        let sequence = self.conversation.send(kind, round)?;
        let header = Header::for_payload(kind, sequence, count, payload, true)?;
        wire.send(self.pipe_out, &[&header.encode(), payload].concat(), now);
        Ok(())
    }

    pub(crate) fn close(&mut self, wire: &mut Wire, now: Duration) {
        self.closed = true;
        wire.close(self.pipe_out, now);
    }

    /// The header that waits may go on: its payload is read from now on.
    pub(crate) fn take(&mut self) {
        if let Some(header) = self.header.take() {
            self.payload = vec![0; usize::try_from(header.payload_bytes).unwrap()];
        }
    }

    /// Reads one piece, unless a header waits.
    pub(crate) fn receive(
        &mut self,
        wire: &mut Wire,
        now: Duration,
    ) -> Result<Arrival, ProtocolError> {
        if self.closed || self.header.is_some() {
            return Ok(Arrival::Nothing);
        }
        loop {
            if self.unread.is_empty() {
                match wire.receive(self.pipe_in, now) {
                    Some(piece) => self.unread = piece,
                    None if wire.pipes[self.pipe_in].has_ended(now) => return self.ended(),
                    None => {}
                }
            }
            let (taken, event) = self.incoming.push(&self.unread, &mut self.payload)?;
            self.unread.drain(..taken);
            match event {
                Event::NeedMore if self.unread.is_empty() => {
                    if wire.pipes[self.pipe_in].next_at().is_none_or(|at| at > now) {
                        return Ok(Arrival::Nothing);
                    }
                }
                Event::NeedMore => {}
                Event::Header(header) => {
                    self.conversation.receive(&header)?;
                    self.header = Some(header);
                    return Ok(Arrival::Header(header));
                }
                Event::Frame(header) => {
                    return Ok(Arrival::Frame(header, std::mem::take(&mut self.payload)));
                }
            }
        }
    }

    fn ended(&mut self) -> Result<Arrival, ProtocolError> {
        self.closed = true;
        match self.conversation.state() {
            LinkState::Closing | LinkState::Ended => Ok(Arrival::Nothing),
            _ => self
                .incoming
                .end()
                .map(|()| Arrival::Lost)
                .map_err(|error| ProtocolError {
                    refusal: Refusal::PeerLost,
                    ..error
                }),
        }
    }
}
