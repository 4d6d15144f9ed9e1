//! What to read next on one connection: a header, or so many payload bytes.
//! It owns no payload memory and no socket; the caller reads, and says how much came.

use crate::{
    bytes::to_usize,
    error::{ProtocolError, Refusal},
    frame::{Checksum, FrameRules, Header},
    limits::HEADER_BYTES,
};

/// What the connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// So many more bytes of a header, into [`Incoming::header_space`].
    Header {
        /// Bytes that are still missing.
        bytes: usize,
    },
    /// So many more bytes of this frame's payload, into memory of the caller; 0 when it is
    /// complete and [`Incoming::finish`] is due.
    Payload {
        /// The frame's header.
        header: Header,
        /// Payload bytes that have come.
        offset: usize,
        /// Bytes that are still missing.
        bytes: usize,
    },
}

/// What [`Incoming::push`] saw.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// All input is taken, nothing is complete.
    NeedMore,
    /// A header is complete; the payload's memory is due, also where the payload is empty.
    Header(Header),
    /// The payload is complete and its checksum agrees.
    Frame(Header),
}

/// The receiving side of one connection, between the bytes and the frames.
///
/// Invariant: `filled <= 32` while a header is due, else `filled <= payload_bytes`.
#[derive(Clone, Debug)]
pub struct Incoming {
    rules: FrameRules,
    bytes: [u8; HEADER_BYTES],
    header: Option<Header>,
    filled: usize,
    checksum: Checksum,
}

impl Incoming {
    /// A connection whose next byte is the first of a header.
    #[must_use]
    pub const fn new(rules: FrameRules) -> Self {
        Self {
            rules,
            bytes: [0; HEADER_BYTES],
            header: None,
            filled: 0,
            checksum: Checksum::new(),
        }
    }

    /// What to read next.
    #[must_use]
    pub fn want(&self) -> Want {
        match self.header {
            None => Want::Header {
                bytes: HEADER_BYTES.saturating_sub(self.filled),
            },
            Some(header) => {
                let bytes = to_usize(header.payload_bytes).saturating_sub(self.filled);
                Want::Payload {
                    header,
                    offset: self.filled,
                    bytes,
                }
            }
        }
    }

    /// Where the missing header bytes go; empty while a payload is due.
    pub fn header_space(&mut self) -> &mut [u8] {
        let from = if self.header.is_some() {
            HEADER_BYTES
        } else {
            self.filled
        };
        self.bytes.get_mut(from..).unwrap_or_default()
    }

    /// Says that `bytes` bytes were read into [`Self::header_space`].
    ///
    /// Returns the header once it is complete. Errors: the rules of section 3, and `local` where
    /// more bytes are claimed than there was space for.
    pub fn header_received(&mut self, bytes: usize) -> Result<Option<Header>, ProtocolError> {
        if bytes > self.header_space().len() {
            return Err(Refusal::Local.error("more header bytes than there was space for"));
        }
        self.filled = self.filled.saturating_add(bytes);
        if self.header.is_some() || self.filled < HEADER_BYTES {
            return Ok(None);
        }
        let header = Header::parse(&self.bytes, &self.rules)?;
        self.header = Some(header);
        self.filled = 0;
        self.checksum = Checksum::new();
        Ok(Some(header))
    }

    /// Says that `bytes` payload bytes were read; the caller computes the checksum.
    ///
    /// Errors: `local` where more bytes are claimed than the payload has.
    pub fn payload_received(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        match self.want() {
            Want::Payload { bytes: missing, .. } if bytes <= missing => {
                self.filled = self.filled.saturating_add(bytes);
                Ok(())
            }
            _ => Err(Refusal::Local.error("more payload bytes than the frame has")),
        }
    }

    /// Ends a frame whose payload is complete: compares `checksum` (CRC-32C of the payload, not
    /// looked at where the connection goes without) and waits for the next header.
    ///
    /// Errors: `payload_checksum`; `local` where the payload is not complete.
    pub fn finish(&mut self, checksum: u32) -> Result<Header, ProtocolError> {
        let Want::Payload {
            header, bytes: 0, ..
        } = self.want()
        else {
            return Err(Refusal::Local.error("the payload is not complete"));
        };
        header.check_payload(checksum)?;
        self.header = None;
        self.filled = 0;
        Ok(header)
    }

    /// Takes bytes as they come, for callers that have them in memory already.
    ///
    /// After [`Event::Header`], `payload` is at least `payload_bytes` long and the same until
    /// [`Event::Frame`]; before, it may be empty. Returns how many bytes of `input` were taken; the
    /// rest is to be pushed again. Events are the same for every split of the stream.
    pub fn push(
        &mut self,
        input: &[u8],
        payload: &mut [u8],
    ) -> Result<(usize, Event), ProtocolError> {
        match self.want() {
            Want::Header { .. } => {
                let space = self.header_space();
                let bytes = copy_front(space, input);
                let event = self.header_received(bytes)?;
                Ok((bytes, event.map_or(Event::NeedMore, Event::Header)))
            }
            Want::Payload {
                offset,
                bytes: missing,
                ..
            } => {
                let end = offset.saturating_add(missing);
                let space = payload
                    .get_mut(offset..end)
                    .ok_or_else(|| Refusal::Local.error("the payload's memory is too small"))?;
                let bytes = copy_front(space, input);
                self.checksum.update(space.get(..bytes).unwrap_or_default());
                self.payload_received(bytes)?;
                if bytes < missing {
                    return Ok((bytes, Event::NeedMore));
                }
                let computed = self.checksum.clone().finish();
                self.finish(computed)
                    .map(|header| (bytes, Event::Frame(header)))
            }
        }
    }

    /// The connection ended: fine between frames, `truncated` inside one.
    pub fn end(&self) -> Result<(), ProtocolError> {
        match self.want() {
            Want::Header {
                bytes: HEADER_BYTES,
            } => Ok(()),
            Want::Header { .. } => {
                Err(Refusal::Truncated.error("the connection ended in a header"))
            }
            Want::Payload { header, offset, .. } => {
                let got = u64::try_from(offset).unwrap_or(u64::MAX);
                Err(Refusal::Truncated.numbers("payload bytes", header.payload_bytes, got))
            }
        }
    }
}

impl Default for Incoming {
    /// Checksums on, payloads up to 1 GiB.
    fn default() -> Self {
        Self::new(FrameRules::default())
    }
}

/// Copies as much of `from` as fits; returns how much that was.
fn copy_front(into: &mut [u8], from: &[u8]) -> usize {
    let bytes = into.len().min(from.len());
    if let (Some(into), Some(from)) = (into.get_mut(..bytes), from.get(..bytes)) {
        into.copy_from_slice(from);
    }
    bytes
}
