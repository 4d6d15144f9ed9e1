//! The boundary link to the next rank: rows out against credits.
//!
//! The calling thread drives the socket; what a round's rows are is told by the caller.

use std::os::fd::AsFd;

use rustix::io::Errno;
use stagelink_proto::conversation::{Conversation, LinkEnd};
use stagelink_proto::frame::{Header, Kind};
use stagelink_proto::in_flight::Credits;
use stagelink_proto::limits;
use stagelink_proto::rows::ExpectedRows;
use stagelink_proto::seal::Records;

use crate::boundary::{Trouble, say, tear};
use crate::connection::{Connection, Fill, LinkFigures, LinkedSocket};
use crate::deadline::Deadline;
use crate::habits::{CREDIT, Habits};
use crate::lent::Lent;
use crate::seal::scratch;
use crate::socket::{READ, Socket, WRITE};
use crate::wait::Wait;

/// Bytes that the kernel may hold unsent on the bulk lane.
const UNSENT_BYTES: u32 = 512 << 10;

/// The link to the next rank, which this rank dialled.
#[derive(Debug)]
pub(crate) struct Outgoing {
    connection: Connection,
    conversation: Conversation,
    checksums: bool,
    credits: Credits,
    is_inside_frame: bool,
    habits: Habits,
    /// Where a record is sealed, so that the caller's rows stay as they are.
    scratch: Vec<u8>,
    /// The bulk lane: its receiver has a buffer for every frame, and so reads in time.
    is_bulk: bool,
}

impl Outgoing {
    /// A link whose handshake is made; `buffers` are the credits to start with.
    pub(crate) fn new(linked: LinkedSocket, buffers: u16) -> Self {
        linked.socket.outwait_busy_reader();
        Self {
            scratch: scratch(linked.seals.as_ref()),
            checksums: linked.rules.checksums,
            connection: Connection::new(linked),
            conversation: Conversation::new(LinkEnd::RingConnector { tokens: false }),
            credits: Credits::new(buffers),
            is_inside_frame: false,
            habits: Habits::new(),
            is_bulk: false,
        }
    }

    /// The bulk lane of a link: no credit before the first credit frame.
    pub(crate) fn bulk(linked: LinkedSocket, buffers: u16) -> Self {
        // Without it the kernel only takes more at a time.
        let _ = linked.socket.bound_unsent(UNSENT_BYTES);
        Self {
            conversation: Conversation::new(LinkEnd::BulkConnector),
            credits: Credits::none_posted(buffers),
            is_bulk: true,
            ..Self::new(linked, buffers)
        }
    }

    pub(crate) fn figures(&self) -> LinkFigures {
        let mut figures = self.connection.figures;
        self.habits.tell(&mut figures.waits);
        figures
    }

    /// Send one rows frame: header and rows in one vectored write, when there is a credit for it.
    pub(crate) fn send(
        &mut self,
        frame: ExpectedRows,
        rows: Lent<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        self.await_credit(wait)?;
        let checksum = if self.checksums {
            rows.checksum(frame.memory_bytes())
        } else {
            0
        };
        self.send_with(frame, rows, checksum, wait)
    }

    /// As [`Self::send`], with the checksum made beforehand.
    pub(crate) fn send_with(
        &mut self,
        frame: ExpectedRows,
        rows: Lent<'_>,
        checksum: u32,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        self.await_credit(wait)?;
        let sequence = self
            .conversation
            .send(Kind::Rows, Some(frame.round))
            .map_err(Trouble::Own)?;
        self.is_inside_frame = true;
        let header = Header {
            kind: Kind::Rows,
            payload_bytes: frame.payload_bytes,
            count: frame.count,
            sequence,
            checksummed: self.checksums,
            payload_checksum: checksum,
        };
        self.credits.take().map_err(Trouble::Own)?;
        let limit = limits::payload_limit(frame.payload_bytes);
        let limit = self.is_bulk.then(|| Deadline::after(limit));
        let result = if self.connection.seals.is_some() {
            self.write_sealed(&header, rows, limit, wait)
        } else {
            self.write(&header.encode(), frame.memory_bytes(), rows, limit, wait)
        };
        self.connection.figures.add_wait(wait.take_spent());
        result.map_err(tear)?;
        self.is_inside_frame = false;
        self.connection.figures.frames_sent += 1;
        Ok(())
    }

    /// Queue a fate or bye frame and send what fits; false where the stream is inside a frame.
    pub(crate) fn say(&mut self, kind: Kind, payload: &[u8]) -> bool {
        if self.is_inside_frame {
            return false;
        }
        say(&mut self.conversation, kind, payload, self.checksums).is_some_and(|header| {
            self.connection.push(&header, payload).is_ok() && !self.connection.flush()
        })
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.connection.socket
    }

    fn write(
        &mut self,
        head: &[u8],
        bytes: usize,
        rows: Lent<'_>,
        limit: Option<Deadline>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        let total = head.len() + bytes;
        let mut sent = 0;
        let mut stall = limit.map(|whole| whole.or_sooner(limits::PAYLOAD_STALL_LIMIT));
        while sent < total {
            match rows.send(self.connection.as_fd(), head, bytes, sent) {
                Ok(count) => {
                    sent += count;
                    self.connection.figures.bytes_sent += count as u64;
                    stall = limit.map(|whole| whole.or_sooner(limits::PAYLOAD_STALL_LIMIT));
                }
                Err(Errno::INTR) => {}
                // No limit of its own on the row lane: the next rank reads when its engine is
                // done, and who is alive and progresses is judged on the control links.
                Err(Errno::AGAIN) => {
                    let in_time = wait.until(self.connection.as_fd(), WRITE, stall);
                    if let (false, Some(stall)) = (in_time.map_err(Trouble::Ended)?, stall) {
                        return Err(Trouble::Late(stall.seconds()));
                    }
                }
                Err(_) => {
                    // A peer that closes says why first; its word lies in the receive buffer.
                    self.take_frames()?;
                    return Err(Trouble::Lost);
                }
            }
        }
        Ok(())
    }

    /// Record after record, so that the next rank opens one while the next is made.
    fn write_sealed(
        &mut self,
        header: &Header,
        rows: Lent<'_>,
        limit: Option<Deadline>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        let head = header.encode_sealed();
        let records = Records::of(header.payload_bytes);
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = (0..records.count()).try_for_each(|index| {
            let seals = self.connection.seals.as_mut().ok_or(Trouble::Lost)?;
            let made = seals
                .sealer
                .write(&head, records, index, rows, &mut scratch);
            let made = made.map_err(Trouble::Own)?;
            self.write(&scratch[..made], 0, rows, limit, wait)
        });
        self.scratch = scratch;
        result
    }

    fn await_credit(&mut self, wait: &mut Wait<'_>) -> Result<(), Trouble> {
        if self.credits.is_ready() {
            return Ok(());
        }
        self.habits.begin(CREDIT, wait);
        while !self.credits.is_ready() {
            if self.take_frames()? == Fill::Nothing {
                wait.again(self.connection.as_fd(), READ)
                    .map_err(Trouble::Ended)?;
            }
        }
        self.habits.end(CREDIT, wait);
        Ok(())
    }

    /// Read what the next rank has sent: credits, bye, fate.
    fn take_frames(&mut self) -> Result<Fill, Trouble> {
        let fill = self.connection.fill();
        let mut fate = None;
        let mut bye = false;
        while let Some((header, payload)) = self.connection.next_frame().map_err(Trouble::Broken)? {
            self.conversation
                .receive(&header)
                .map_err(Trouble::Broken)?;
            match header.kind {
                Kind::Credit => self
                    .credits
                    .receive(header.count)
                    .map_err(Trouble::Broken)?,
                Kind::Fate => fate = Some(payload.to_vec()),
                _ => bye = true,
            }
        }
        if let Some(payload) = fate {
            return Err(Trouble::Fate(payload));
        }
        if bye {
            return Err(Trouble::Bye);
        }
        if fill == Fill::Closed {
            return Err(Trouble::Lost);
        }
        Ok(fill)
    }
}
