//! The boundary link from the previous rank: rows into the caller's own memory, credits back.
//!
//! The calling thread drives the socket; what a round's rows are is told by the caller.

mod sealed;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use stagelink_proto::conversation::{Conversation, LinkEnd};
use stagelink_proto::error::ProtocolError;
use stagelink_proto::frame::{FrameRules, Header, Kind};
use stagelink_proto::in_flight::Buffers;
use stagelink_proto::limits;
use stagelink_proto::rows::ExpectedRows;

use crate::boundary::{Trouble, say};
use crate::connection::{LinkFigures, LinkedSocket};
use crate::deadline::Deadline;
use crate::habits::Habits;
use crate::lent::{Lent, LentMut, RunningChecksum};
use crate::seal::{Seals, scratch};
use crate::socket::{READ, Socket};
use crate::wait::Wait;

/// Most payload bytes of one read, so that they are summed up while they lie in the cache.
const PART_BYTES: usize = 512 << 10;

/// The largest frame against the rows' direction: a fate, sealed.
const WORD_BYTES: usize =
    limits::HEADER_BYTES + limits::FATE_BYTES_MAX as usize + limits::TAG_BYTES as usize;

/// The link from the previous rank, which dialled this one.
#[derive(Debug)]
pub(crate) struct Incoming {
    socket: Socket,
    conversation: Conversation,
    rules: FrameRules,
    buffers: Buffers,
    figures: LinkFigures,
    habits: Habits,
    seals: Option<Seals>,
    /// Where a record lies until its tag has verified.
    scratch: Vec<u8>,
    /// The frame that is sent against the rows' direction.
    word: Vec<u8>,
    /// On the bulk lane: buffers that were posted and that the previous rank is not told of.
    untold: Option<Arc<AtomicU32>>,
}

impl Incoming {
    /// A link whose handshake is made.
    pub(crate) fn new(linked: LinkedSocket, buffers: u16) -> Self {
        Self {
            conversation: Conversation::new(LinkEnd::RingAcceptor { tokens: false }),
            rules: linked.rules,
            buffers: Buffers::new(buffers),
            figures: LinkFigures::default(),
            habits: Habits::new(),
            scratch: scratch(linked.seals.as_ref()),
            word: Vec::with_capacity(WORD_BYTES),
            seals: linked.seals,
            socket: linked.socket,
            untold: None,
        }
    }

    /// The bulk lane of a link, where credits are the buffers that `untold` counts.
    pub(crate) fn bulk(linked: LinkedSocket, buffers: u16, untold: Arc<AtomicU32>) -> Self {
        Self {
            conversation: Conversation::new(LinkEnd::BulkAcceptor),
            buffers: Buffers::none_posted(buffers),
            untold: Some(untold),
            ..Self::new(linked, buffers)
        }
    }

    pub(crate) fn figures(&self) -> LinkFigures {
        let mut figures = self.figures;
        self.habits.tell(&mut figures.waits);
        figures
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Receive one rows frame straight into `rows`, and judge it when it is complete.
    pub(crate) fn receive(
        &mut self,
        frame: ExpectedRows,
        rows: &mut LentMut<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        if self.untold.is_some() {
            self.tell_posted()?;
        } else {
            self.return_credits()?;
        }
        let mut head = [0_u8; limits::HEADER_BYTES];
        self.habits.begin(frame.count, wait);
        let result = if self.seals.is_some() {
            self.read_sealed(frame, rows, wait)
        } else {
            self.read(frame, &mut head, rows, wait)
        };
        self.figures.add_wait(wait.take_spent());
        result?;
        self.figures.frames_received += 1;
        Ok(())
    }

    /// Tell the previous rank which of this rank's buffers are free again.
    pub(crate) fn return_credits(&mut self) -> Result<(), Trouble> {
        self.give_credits(self.buffers.due())
    }

    /// Tell the previous rank which buffers have been posted on the bulk lane.
    pub(crate) fn tell_posted(&mut self) -> Result<(), Trouble> {
        let posted = self.untold.as_ref().map(|it| it.swap(0, Ordering::AcqRel));
        self.give_credits(posted.unwrap_or(0))
    }

    fn give_credits(&mut self, owed: u32) -> Result<(), Trouble> {
        if owed == 0 {
            return Ok(());
        }
        let sequence = self
            .conversation
            .send(Kind::Credit, None)
            .map_err(Trouble::Own)?;
        let header = Header {
            kind: Kind::Credit,
            payload_bytes: 0,
            count: owed,
            sequence,
            checksummed: self.rules.checksums,
            payload_checksum: 0,
        };
        self.buffers.release(owed).map_err(Trouble::Own)?;
        // A frame so small always fits: at most one credit a buffer is ever under way. A previous
        // rank that is gone is noticed where rows are expected of it.
        self.transmit(&header, &[]).map_err(Trouble::Own)?;
        Ok(())
    }

    /// Send a fate or bye frame against the rows' direction.
    pub(crate) fn say(&mut self, kind: Kind, payload: &[u8]) -> bool {
        let checksums = self.rules.checksums;
        let Some(header) = say(&mut self.conversation, kind, payload, checksums) else {
            return false;
        };
        self.transmit(&header, payload).unwrap_or(false)
    }

    /// Send a small frame; whether the whole of it went.
    fn transmit(&mut self, header: &Header, payload: &[u8]) -> Result<bool, ProtocolError> {
        self.word.clear();
        if let Some(seals) = &mut self.seals {
            seals.sealer.append(header, payload, &mut self.word)?;
        } else {
            self.word.extend_from_slice(&header.encode());
            self.word.extend_from_slice(payload);
        }
        let sent = self.socket.send(&self.word);
        if let Ok(count) = sent {
            self.figures.bytes_sent += count as u64;
            self.figures.frames_sent += 1;
        }
        Ok(sent == Ok(self.word.len()))
    }

    fn read(
        &mut self,
        frame: ExpectedRows,
        head: &mut [u8; limits::HEADER_BYTES],
        rows: &mut LentMut<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        let mut filled = 0_usize;
        let mut header = None;
        let mut limit: Option<(Deadline, Deadline)> = None;
        let mut running = RunningChecksum::default();
        loop {
            let body = filled.saturating_sub(head.len());
            let part = frame.memory_bytes().min(body + PART_BYTES);
            match rows.receive(self.socket.as_fd(), head, part, filled) {
                Ok(0) => return Err(Trouble::Lost),
                Ok(count) => {
                    if filled == 0 {
                        self.habits.end(frame.count, wait);
                    }
                    filled += count;
                    self.figures.bytes_received += count as u64;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.wait_for_more(limit, wait)?;
                    continue;
                }
                Err(_) => return Err(Trouble::Lost),
            }
            if filled >= head.len() && header.is_none() {
                let parsed = self.take_header(frame, head, rows, filled, wait)?;
                header = Some(parsed);
            }
            if let Some(header) = header {
                let body = filled - head.len();
                // A small frame is summed up at once; of a large one each part when it has come.
                if header.checksummed && running.summed() + PART_BYTES <= body {
                    running.sum_to(rows, body);
                }
                if body == frame.memory_bytes() {
                    let computed = if header.checksummed {
                        running.whole(rows, body)
                    } else {
                        0
                    };
                    return header.check_payload(computed).map_err(Trouble::Broken);
                }
            }
            let whole = limits::payload_limit(frame.payload_bytes);
            let first = limit.map_or_else(|| Deadline::after(whole), |(whole, _)| whole);
            limit = Some((first, Deadline::after(limits::PAYLOAD_STALL_LIMIT)));
        }
    }

    fn wait_for_more(
        &mut self,
        limit: Option<(Deadline, Deadline)>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        self.tell_posted()?;
        let fd = self.socket.as_fd();
        let Some((whole, stall)) = limit else {
            return wait.again(fd, READ).map_err(Trouble::Ended);
        };
        let sooner = if whole.remaining() < stall.remaining() {
            whole
        } else {
            stall
        };
        if wait.until(fd, READ, Some(sooner)).map_err(Trouble::Torn)? {
            Ok(())
        } else {
            Err(Trouble::Late(sooner.seconds()))
        }
    }

    fn take_header(
        &mut self,
        frame: ExpectedRows,
        head: &[u8; limits::HEADER_BYTES],
        rows: &LentMut<'_>,
        filled: usize,
        wait: &mut Wait<'_>,
    ) -> Result<Header, Trouble> {
        let header = Header::parse(head, &self.rules).map_err(Trouble::Broken)?;
        self.conversation
            .receive(&header)
            .map_err(Trouble::Broken)?;
        match header.kind {
            Kind::Rows => {
                self.buffers.fill().map_err(Trouble::Broken)?;
                frame
                    .check(&header)
                    .map(|()| header)
                    .map_err(Trouble::Broken)
            }
            Kind::Fate => {
                // The start of the text went where rows were expected; the rest is still to come.
                let mut payload = vec![0_u8; header.payload_bytes as usize];
                let came = (filled - head.len()).min(payload.len());
                rows.copy_to(&mut payload[..came]);
                self.read_rest(&mut payload[came..], wait)?;
                let computed = Lent::from_slice(&payload).checksum(payload.len());
                header.check_payload(computed).map_err(Trouble::Broken)?;
                Err(Trouble::Fate(payload))
            }
            _ => Err(Trouble::Bye),
        }
    }

    fn read_rest(&self, mut rest: &mut [u8], wait: &mut Wait<'_>) -> Result<(), Trouble> {
        let deadline = Deadline::after(limits::FATE_WAIT);
        while !rest.is_empty() {
            match self.socket.receive(rest) {
                Ok(0) => return Err(Trouble::Lost),
                Ok(count) => rest = &mut rest[count..],
                Err(Errno::AGAIN) => {
                    let limit = Some(deadline);
                    if !wait
                        .until(self.socket.as_fd(), READ, limit)
                        .map_err(Trouble::Ended)?
                    {
                        return Err(Trouble::Lost);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return Err(Trouble::Lost),
            }
        }
        Ok(())
    }
}
