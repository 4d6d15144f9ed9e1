//! Sealed frames: where records lie, and which nonce each one has (docs/protocol.md 4.6).
//! It encrypts nothing; the cipher belongs to the caller.

use core::ops::Range;

use crate::{
    bytes::to_usize,
    error::{ProtocolError, Refusal},
    limits::{HEADER_BYTES, RECORD_BYTES, SEALED_RECORDS_MAX, TAG_BYTES},
};

/// A record's nonce: four zeros, then its number.
pub type Nonce = [u8; 12];

/// What proves that a record is whole, in its place, and of a holder of the key.
pub type Tag = [u8; 16];

/// The payload of one frame, cut into records.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Records {
    payload_bytes: u32,
}

impl Records {
    /// The records of a payload; an empty one is a record of no bytes.
    #[must_use]
    pub const fn of(payload_bytes: u32) -> Self {
        Self { payload_bytes }
    }

    /// How many records there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        match self.payload_bytes {
            0 => 1,
            bytes => bytes.div_ceil(RECORD_BYTES),
        }
    }

    /// Bytes on the wire after the header: the payload, and a tag for each record.
    #[must_use]
    pub fn wire_bytes(self) -> usize {
        let tags = to_usize(self.count()).saturating_mul(to_usize(TAG_BYTES));
        to_usize(self.payload_bytes).saturating_add(tags)
    }

    /// The payload bytes of record `index`; `None` past the last.
    #[must_use]
    pub fn plaintext(self, index: u32) -> Option<Range<usize>> {
        if index >= self.count() {
            return None;
        }
        let first = index.checked_mul(RECORD_BYTES)?;
        let end = first.saturating_add(RECORD_BYTES).min(self.payload_bytes);
        Some(to_usize(first)..to_usize(end))
    }

    /// Where record `index` lies on the wire, counted from the header's end, its tag included.
    #[must_use]
    pub fn on_wire(self, index: u32) -> Option<Range<usize>> {
        let plaintext = self.plaintext(index)?;
        let tag = to_usize(TAG_BYTES);
        let before = to_usize(index).saturating_mul(tag);
        let first = plaintext.start.saturating_add(before);
        let end = plaintext.end.saturating_add(before).saturating_add(tag);
        Some(first..end)
    }
}

/// One suite with one key: what encrypts and opens single records, in place.
pub trait Cipher {
    /// Encrypts `record`, and returns the tag that follows it.
    ///
    /// Errors: `local` where the cipher fails, which no input of these sizes makes it do.
    fn seal(
        &self,
        nonce: &Nonce,
        header: &[u8; HEADER_BYTES],
        record: &mut [u8],
    ) -> Result<Tag, ProtocolError>;

    /// Opens `record`; what it holds afterwards is of use only where no error came.
    ///
    /// Errors: `seal` where the tag does not verify.
    fn open(
        &self,
        nonce: &Nonce,
        header: &[u8; HEADER_BYTES],
        record: &mut [u8],
        tag: &Tag,
    ) -> Result<(), ProtocolError>;
}

/// Counts the records of one direction of one connection; a number is given once.
#[derive(Debug)]
pub struct RecordCounter {
    next: u64,
}

impl RecordCounter {
    /// Before the first record.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0 }
    }

    /// Before record `next`, for tools that judge one piece of a connection.
    #[must_use]
    pub const fn at(next: u64) -> Self {
        Self { next }
    }

    /// The number of the next record.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// The nonce of the next record, which no other record will have.
    ///
    /// Errors: `local` after 2^34 records, the most that one key may seal.
    pub fn take(&mut self) -> Result<Nonce, ProtocolError> {
        let number = self.next;
        if number >= SEALED_RECORDS_MAX {
            return Err(Refusal::Local.error(
                "a sealed connection has carried all records that its key may seal; start anew",
            ));
        }
        self.next = number.saturating_add(1);
        let mut nonce = [0; 12];
        for (to, from) in nonce.iter_mut().skip(4).zip(number.to_le_bytes()) {
            *to = from;
        }
        Ok(nonce)
    }
}

impl Default for RecordCounter {
    fn default() -> Self {
        Self::new()
    }
}

/// The error for a tag that does not verify.
#[must_use]
pub const fn broken_seal() -> ProtocolError {
    Refusal::Seal.error("expected a record of this connection; its tag does not verify")
}

#[cfg(test)]
mod tests {
    use super::{RecordCounter, Records};
    use crate::{
        Refusal,
        bytes::to_usize,
        limits::{RECORD_BYTES, SEALED_RECORDS_MAX},
    };

    #[test]
    fn records_cover_a_payload_once_and_a_tag_follows_each() {
        for payload in [
            0,
            1,
            20_480,
            RECORD_BYTES - 1,
            RECORD_BYTES,
            RECORD_BYTES + 1,
            1 << 30,
        ] {
            let records = Records::of(payload);
            let (mut plain, mut wire) = (0, 0);
            for index in 0..records.count() {
                let (inside, outside) = (
                    records.plaintext(index).unwrap(),
                    records.on_wire(index).unwrap(),
                );
                assert_eq!((inside.start, outside.start), (plain, wire), "{payload}");
                assert_eq!(outside.len(), inside.len() + 16);
                assert!(inside.len() <= to_usize(RECORD_BYTES));
                (plain, wire) = (inside.end, outside.end);
            }
            assert_eq!(
                (plain, wire),
                (to_usize(payload), records.wire_bytes()),
                "{payload}"
            );
            assert_eq!(records.plaintext(records.count()), None);
        }
    }

    #[test]
    fn an_empty_payload_is_one_record() {
        let records = Records::of(0);
        assert_eq!((records.count(), records.wire_bytes()), (1, 16));
        assert_eq!(records.on_wire(0), Some(0..16));
    }

    #[test]
    fn a_nonce_is_four_zeros_and_the_number() {
        let mut counter = RecordCounter::at(0x0102_0304);
        assert_eq!(
            counter.take().unwrap(),
            [0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]
        );
        assert_eq!(
            counter.take().unwrap(),
            [0, 0, 0, 0, 5, 3, 2, 1, 0, 0, 0, 0]
        );
    }

    #[test]
    fn the_counter_ends_before_a_key_is_used_up() {
        let mut counter = RecordCounter::at(SEALED_RECORDS_MAX - 1);
        counter.take().unwrap();
        assert_eq!(counter.take().unwrap_err().refusal, Refusal::Local);
        assert_eq!(counter.next(), SEALED_RECORDS_MAX);
    }
}
