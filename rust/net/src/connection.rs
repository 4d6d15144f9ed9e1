//! One handshaken connection for messages: whole frames in, whole frames out, never blocking.
//!
//! Rows do not pass here (`boundary`), and nothing is decided about what a message means.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use stagelink_proto::error::{ProtocolError, Refusal};
use stagelink_proto::frame::{FrameRules, Header, Kind};
use stagelink_proto::limits;
use stagelink_proto::seal::Records;

use crate::habits::WaitFigures;
use crate::lent::Lent;
use crate::seal::Seals;
use crate::socket::Socket;
use crate::wait::Spent;

/// Bytes that the reader holds at rest; it grows only for a plan or roster that is larger.
const READER_BYTES: usize = 8_192;
/// Unsent bytes that a peer may leave lying before its link counts as clogged.
pub(crate) const OUTBOX_BYTES_MAX: usize = 16 << 20;

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Some bytes.
    Some,
    /// Nothing for now.
    Nothing,
    /// The other side has closed or reset.
    Closed,
}

/// A socket whose handshake is made, with what both ends have settled.
#[derive(Debug)]
pub(crate) struct LinkedSocket {
    pub(crate) socket: Socket,
    pub(crate) rules: FrameRules,
    /// Where the suite is a sealed one.
    pub(crate) seals: Option<Seals>,
}

/// A message connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Shared so that a poll can go on without the lock of this connection.
    pub(crate) socket: Arc<Socket>,
    rules: FrameRules,
    pub(crate) seals: Option<Seals>,
    buffer: Vec<u8>,
    filled: Range<usize>,
    outbox: Vec<u8>,
    gone: usize,
    /// Counters since the link was made.
    pub(crate) figures: LinkFigures,
}

/// Bytes and frames of one link, both ways, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkFigures {
    /// Bytes that were sent.
    pub bytes_sent: u64,
    /// Bytes that were received.
    pub bytes_received: u64,
    /// Frames that were sent.
    pub frames_sent: u64,
    /// Frames that were received.
    pub frames_received: u64,
    /// Seconds that the caller's thread waited for this link.
    pub seconds_waited: f64,
    /// How it waited.
    pub waits: WaitFigures,
}

impl LinkFigures {
    /// Count what a call spent waiting.
    pub(crate) fn add_wait(&mut self, spent: Spent) {
        self.seconds_waited += (spent.slept + spent.spun).as_secs_f64();
        self.waits.add(spent);
    }
}

impl Connection {
    pub(crate) fn new(linked: LinkedSocket) -> Self {
        Self {
            socket: Arc::new(linked.socket),
            rules: linked.rules,
            seals: linked.seals,
            buffer: vec![0; READER_BYTES],
            filled: 0..0,
            outbox: Vec::with_capacity(READER_BYTES),
            gone: 0,
            figures: LinkFigures::default(),
        }
    }

    /// Read what is there, once.
    pub(crate) fn fill(&mut self) -> Fill {
        if self.filled.is_empty() {
            self.filled = 0..0;
        }
        if self.filled.end == self.buffer.len() {
            self.make_room();
        }
        match self.socket.receive(&mut self.buffer[self.filled.end..]) {
            Ok(0) => Fill::Closed,
            Ok(count) => {
                self.filled.end += count;
                self.figures.bytes_received += count as u64;
                Fill::Some
            }
            Err(Errno::AGAIN | Errno::INTR) => Fill::Nothing,
            Err(_) => Fill::Closed,
        }
    }

    /// The next whole frame and its payload; `None` until more bytes have come.
    pub(crate) fn next_frame(&mut self) -> Result<Option<(Header, &[u8])>, ProtocolError> {
        let bytes = &self.buffer[self.filled.clone()];
        let Some((head, rest)) = bytes.split_first_chunk::<{ limits::HEADER_BYTES }>() else {
            return Ok(None);
        };
        let header = Header::parse(head, &self.rules)?;
        if matches!(header.kind, Kind::Rows | Kind::Tokens) {
            return Err(Refusal::UnexpectedKind.error("expected no rows on a control link"));
        }
        let payload_bytes = header.payload_bytes as usize;
        let records = Records::of(header.payload_bytes);
        let wire_bytes = if self.rules.sealed {
            records.wire_bytes()
        } else {
            payload_bytes
        };
        if rest.len() < wire_bytes {
            return Ok(None);
        }
        let head = *head;
        let start = self.filled.start + limits::HEADER_BYTES;
        let payload = start..start + payload_bytes;
        let whole = Lent::from_slice(&self.buffer[payload.clone()]);
        header.check_payload(whole.checksum(if header.checksummed { payload_bytes } else { 0 }))?;
        if let Some(seals) = &mut self.seals {
            let wire = &mut self.buffer[start..start + wire_bytes];
            seals.opener.open_message(&head, records, wire)?;
        }
        self.filled.start = start + wire_bytes;
        self.figures.frames_received += 1;
        Ok(Some((header, &self.buffer[payload])))
    }

    /// Queue one frame; [`Self::flush`] sends it.
    ///
    /// Errors: `silent` when the peer has left too much lying; `local` when a key is used up.
    pub(crate) fn push(&mut self, header: &Header, payload: &[u8]) -> Result<(), ProtocolError> {
        if self.outbox.len() - self.gone + payload.len() > OUTBOX_BYTES_MAX {
            return Err(Refusal::Silent.error("expected a peer that reads its control link"));
        }
        if let Some(seals) = &mut self.seals {
            seals.sealer.append(header, payload, &mut self.outbox)?;
        } else {
            self.outbox.extend_from_slice(&header.encode());
            self.outbox.extend_from_slice(payload);
        }
        self.figures.frames_sent += 1;
        Ok(())
    }

    /// Send what fits of the queue; true while bytes are left. A broken link drops them.
    pub(crate) fn flush(&mut self) -> bool {
        while self.gone < self.outbox.len() {
            match self.socket.send(&self.outbox[self.gone..]) {
                Ok(count) => {
                    self.gone += count;
                    self.figures.bytes_sent += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Keeps the queue from growing at its sent end while a peer is slow.
                    if self.gone > READER_BYTES {
                        self.outbox.drain(..self.gone);
                        self.gone = 0;
                    }
                    return true;
                }
                // The reading side sees the same close and says so.
                Err(_) => break,
            }
        }
        self.outbox.clear();
        self.gone = 0;
        false
    }

    /// Whether queued bytes wait for room.
    pub(crate) fn has_unsent(&self) -> bool {
        self.gone < self.outbox.len()
    }

    fn make_room(&mut self) {
        self.buffer.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        if self.filled.end < self.buffer.len() {
            return;
        }
        // A header inside the buffer was parsed, so its size is within its kind's limit.
        let most = limits::PLAN_BYTES_MAX as usize + limits::HEADER_BYTES + READER_BYTES;
        let wanted = (self.buffer.len() * 2).min(most);
        self.buffer.resize(wanted, 0);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
