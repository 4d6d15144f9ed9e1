//! One end of one simulated link: the real incoming machine and conversation over two pipes.
//! What a frame means its rank decides.

use std::collections::VecDeque;
use std::time::Duration;

use stagelink_proto::conversation::{Conversation, LinkEnd as Side, LinkState};
use stagelink_proto::frame::{FrameRules, Header, Kind};
use stagelink_proto::incoming::{Event, Incoming, Want};
use stagelink_proto::limits::{PAYLOAD_STALL_LIMIT, payload_limit};
use stagelink_proto::{ProtocolError, Refusal};

use crate::mutant::Mutant;
use crate::ring::Sim;
use crate::wire::Ends;

const SKIPS: Mutant = Mutant::SkipsChecksums;

pub(crate) struct LinkEnd {
    pub(crate) peer: u32,
    pub(crate) conversation: Conversation,
    pub(crate) ends: Ends,
    incoming: Incoming,
    rules: FrameRules,
    /// Memory of the payload of any frame but rows.
    pub(crate) payload: Vec<u8>,
    unread: VecDeque<u8>,
    /// What the kernel has not taken yet.
    unsent: VecDeque<u8>,
    /// A header that was seen and not yet taken: rows that came before their plan.
    pub(crate) header: Option<Header>,
    /// When the frame that is read began, and when a byte of it last came.
    frame_times: Option<(Duration, Duration)>,
    /// Nothing is sent or read any more.
    pub(crate) is_closed: bool,
    /// The peer's end was seen.
    is_over: bool,
}

/// What one end saw.
pub(crate) enum Arrival {
    Nothing,
    /// A header; `take` says that its payload may be read.
    Header(Header),
    Frame(Header),
    /// The connection ended without a bye or fate.
    Lost,
}

impl LinkEnd {
    pub(crate) fn new(peer: u32, side: Side, ends: Ends, rules: FrameRules) -> Self {
        Self {
            peer,
            conversation: Conversation::new(side),
            ends,
            incoming: Incoming::new(rules),
            rules,
            payload: Vec::new(),
            unread: VecDeque::new(),
            unsent: VecDeque::new(),
            header: None,
            frame_times: None,
            is_closed: false,
            is_over: false,
        }
    }

    pub(crate) fn send(
        &mut self,
        sim: &mut Sim,
        (kind, round, count): (Kind, Option<u64>, u32),
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        // The peer's fate has begun to come: nothing that is said now matters.
        if self.is_closed || self.conversation.state() == LinkState::Ended {
            return Ok(());
        }
        let sequence = self.conversation.send(kind, round)?;
        let header = Header::for_payload(kind, sequence, count, payload, self.rules.checksums)?;
        self.push(sim, &header, payload);
        Ok(())
    }

    /// Sends a frame as it is, whatever the conversation says.
    pub(crate) fn push(&mut self, sim: &mut Sim, header: &Header, payload: &[u8]) {
        self.unsent.extend(header.encode());
        self.unsent.extend(payload);
        self.flush(sim);
    }

    /// Gives the kernel what it takes.
    pub(crate) fn flush(&mut self, sim: &mut Sim) {
        if self.unsent.is_empty() || self.is_closed {
            return;
        }
        let bytes = self.unsent.make_contiguous();
        let count = sim.wire.write(self.ends.out, bytes, sim.now);
        self.unsent.drain(..count);
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Closes in order where all was sent, else by a reset.
    pub(crate) fn close(&mut self, sim: &mut Sim) {
        if self.is_closed {
            return;
        }
        self.is_closed = true;
        if self.unsent.is_empty() {
            sim.wire.finish(self.ends.out, sim.now);
            sim.wire.stop_reading(self.ends.into);
        } else {
            sim.wire.abort(self.ends, sim.now, 100);
        }
    }

    /// The header that waits may go on: its payload is read from now on.
    pub(crate) fn take(&mut self, now: Duration) {
        if let Some(header) = self.header.take() {
            self.frame_times = Some((now, now));
            if header.kind != Kind::Rows {
                self.payload.clear();
                self.payload
                    .resize(usize::try_from(header.payload_bytes).unwrap_or(0), 0);
            }
        }
    }

    /// When the frame that is being read counts as stuck, unless more of it comes.
    pub(crate) fn late_at(&self) -> Option<Duration> {
        let (first, last) = self
            .frame_times
            .filter(|_| self.header.is_none() && !self.is_over)?;
        let bytes = match self.incoming.want() {
            Want::Payload { header, .. } => header.payload_bytes,
            Want::Header { .. } => 0,
        };
        Some((first + payload_limit(bytes)).min(last + PAYLOAD_STALL_LIMIT))
    }

    /// Reads until something is complete, unless a header waits.
    pub(crate) fn receive(
        &mut self,
        sim: &mut Sim,
        memory: &mut [u8],
    ) -> Result<Arrival, ProtocolError> {
        if self.is_closed || self.is_over || self.header.is_some() {
            return Ok(Arrival::Nothing);
        }
        loop {
            if self.unread.is_empty() {
                self.unread.extend(sim.wire.read(self.ends.into, sim.now));
                if !self.unread.is_empty() {
                    let first = self.frame_times.map_or(sim.now, |(first, _)| first);
                    self.frame_times = Some((first, sim.now));
                }
            }
            let had = self.unread.len();
            let want = self.incoming.want();
            let pushed = self.incoming.push(self.unread.make_contiguous(), memory);
            let (taken, event) = match pushed {
                Err(error) if error.refusal == Refusal::PayloadChecksum && sim.is(SKIPS) => {
                    return Ok(self.skip_checksum(&want));
                }
                pushed => pushed?,
            };
            self.unread.drain(..taken);
            match event {
                Event::NeedMore if had == 0 => break,
                Event::NeedMore => {}
                Event::Header(header) => {
                    self.conversation.receive(&header)?;
                    self.header = Some(header);
                    return Ok(Arrival::Header(header));
                }
                Event::Frame(header) => {
                    self.frame_times = None;
                    return Ok(Arrival::Frame(header));
                }
            }
        }
        self.look_for_end(sim)
    }

    /// Takes a payload whose checksum does not agree.
    fn skip_checksum(&mut self, want: &Want) -> Arrival {
        let Want::Payload { header, bytes, .. } = *want else {
            return Arrival::Nothing;
        };
        self.unread.drain(..bytes);
        self.incoming = Incoming::new(self.rules);
        self.frame_times = None;
        Arrival::Frame(header)
    }

    fn look_for_end(&mut self, sim: &mut Sim) -> Result<Arrival, ProtocolError> {
        let has_ended = sim.wire.has_ended(self.ends.into, sim.now);
        if !has_ended && !sim.wire.is_broken(self.ends.out, sim.now) {
            if let Some(at) = self.late_at().filter(|&at| sim.now >= at) {
                let millis = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
                return Err(Refusal::Deadline.numbers("the rest of a frame by ms", millis, 0_u32));
            }
            return Ok(Arrival::Nothing);
        }
        self.is_over = true;
        match self.conversation.state() {
            LinkState::Closing | LinkState::Ended => Ok(Arrival::Nothing),
            _ => Ok(Arrival::Lost),
        }
    }
}
