//! Sealed links: records made and opened on a connection, one counter a direction.
//!
//! Where records lie and how they are numbered is decided in stagelink-proto; aws-lc-rs has the
//! ciphers.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use stagelink_proto::error::{ProtocolError, Refusal};
use stagelink_proto::frame::Header;
use stagelink_proto::handshake::Linked;
use stagelink_proto::hello::{Role, Suite};
use stagelink_proto::limits;
use stagelink_proto::seal::{Cipher, Nonce, RecordCounter, Records, Tag, broken_seal};

use crate::lent::{Lent, LentMut};

const TAG_BYTES: usize = limits::TAG_BYTES as usize;
/// A header, the largest record and its tag.
const SCRATCH_BYTES: usize = limits::HEADER_BYTES + limits::RECORD_BYTES as usize + TAG_BYTES;

/// A frame's header as it lies on the wire, which every record of the frame is bound to.
pub(crate) type Head = [u8; limits::HEADER_BYTES];

/// The two directions of a sealed connection, from this end.
#[derive(Debug)]
pub(crate) struct Seals {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
}

/// The direction that leaves.
pub(crate) struct Sealer {
    cipher: RecordCipher,
    counter: RecordCounter,
}

/// The direction that arrives.
pub(crate) struct Opener {
    cipher: RecordCipher,
    counter: RecordCounter,
}

impl Seals {
    /// The seals of a connection whose handshake is made; `None` where the suite has none.
    pub(crate) fn of(suite: Suite, linked: &Linked, own: Role) -> Option<Self> {
        let (to_acceptor, to_connector) =
            (&linked.traffic_to_acceptor, &linked.traffic_to_connector);
        let (leaving, arriving) = match own {
            Role::Connector => (to_acceptor, to_connector),
            Role::Acceptor => (to_connector, to_acceptor),
        };
        Some(Self {
            sealer: Sealer::new(suite, leaving)?,
            opener: Opener {
                cipher: RecordCipher::new(suite, arriving)?,
                counter: RecordCounter::new(),
            },
        })
    }
}

impl Sealer {
    /// Before the first record; `None` where the suite has none.
    pub(crate) fn new(suite: Suite, key: &[u8; 32]) -> Option<Self> {
        Some(Self {
            cipher: RecordCipher::new(suite, key)?,
            counter: RecordCounter::new(),
        })
    }

    /// Add a whole frame to `out`.
    ///
    /// Errors: `local` after 2^34 records.
    pub(crate) fn append(
        &mut self,
        header: &Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let head = header.encode_sealed();
        let records = Records::of(header.payload_bytes);
        out.extend_from_slice(&head);
        for index in 0..records.count() {
            let start = out.len();
            let plaintext = records.plaintext(index).unwrap_or_default();
            out.extend_from_slice(&payload[plaintext]);
            let tag = self.seal(&head, &mut out[start..])?;
            out.extend_from_slice(&tag);
        }
        Ok(())
    }

    /// Write record `index` of a rows frame into `scratch`, the header before the first one;
    /// returns how many bytes are to be sent.
    ///
    /// Errors: `local` after 2^34 records.
    pub(crate) fn write(
        &mut self,
        head: &Head,
        records: Records,
        index: u32,
        rows: Lent<'_>,
        scratch: &mut [u8],
    ) -> Result<usize, ProtocolError> {
        let start = if index == 0 { head.len() } else { 0 };
        scratch[..start].copy_from_slice(&head[..start]);
        let plaintext = records.plaintext(index).unwrap_or_default();
        let end = start + plaintext.len();
        let (record, tag) = scratch[start..end + TAG_BYTES].split_at_mut(plaintext.len());
        let nonce = self.counter.take()?;
        self.cipher
            .seal_apart(&nonce, head, rows.bytes(plaintext), record, tag)?;
        Ok(end + TAG_BYTES)
    }

    fn seal(&mut self, head: &Head, record: &mut [u8]) -> Result<Tag, ProtocolError> {
        self.cipher.seal(&self.counter.take()?, head, record)
    }
}

impl Opener {
    /// Open all records of a message in place; its payload is then the front of `wire`.
    ///
    /// Errors: `seal` where a tag does not verify.
    pub(crate) fn open_message(
        &mut self,
        head: &Head,
        records: Records,
        wire: &mut [u8],
    ) -> Result<(), ProtocolError> {
        for index in 0..records.count() {
            let on_wire = records.on_wire(index).unwrap_or_default();
            let plaintext = records.plaintext(index).unwrap_or_default();
            let bytes = self.open(head, &mut wire[on_wire.clone()])?.len();
            if on_wire.start != plaintext.start {
                wire.copy_within(on_wire.start..on_wire.start + bytes, plaintext.start);
            }
        }
        Ok(())
    }

    /// Open record `index` of a rows frame, which lies in `record`, and only then copy it to its
    /// place in `rows`.
    ///
    /// Errors: `seal` where the tag does not verify.
    pub(crate) fn read(
        &mut self,
        head: &Head,
        records: Records,
        index: u32,
        record: &mut [u8],
        rows: &mut LentMut<'_>,
    ) -> Result<(), ProtocolError> {
        let plaintext = records.plaintext(index).unwrap_or_default();
        let opened = self.open(head, record)?;
        rows.copy_from(plaintext.start, opened);
        Ok(())
    }

    /// Open one record with its tag at its end.
    fn open<'a>(&mut self, head: &Head, record: &'a mut [u8]) -> Result<&'a [u8], ProtocolError> {
        let nonce = self.counter.take()?;
        let (plaintext, tag) = record
            .split_last_chunk_mut::<TAG_BYTES>()
            .ok_or_else(broken_seal)?;
        self.cipher.open(&nonce, head, plaintext, tag)?;
        Ok(plaintext)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({})", self.counter.next())
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({})", self.counter.next())
    }
}

/// Memory for one record on the way, made at boot where the link is sealed.
pub(crate) fn scratch(seals: Option<&Seals>) -> Vec<u8> {
    vec![0; seals.map_or(0, |_| SCRATCH_BYTES)]
}

/// One frame alone that a key seals: the fate that answers the welcome of a sealed link.
pub(crate) fn single_frame(
    suite: Suite,
    key: &[u8; 32],
    header: &Header,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut frame = Vec::new();
    let sealed = Sealer::new(suite, key)?.append(header, payload, &mut frame);
    sealed.ok().map(|()| frame)
}

/// A suite's cipher with its key; for rings, and for judging vectors.
pub struct RecordCipher(LessSafeKey);

impl RecordCipher {
    /// The cipher of `suite` with a traffic key; `None` where the suite seals nothing.
    #[must_use]
    pub fn new(suite: Suite, key: &[u8; 32]) -> Option<Self> {
        let key = match suite {
            Suite::Psk => return None,
            Suite::SealedAes => UnboundKey::new(&AES_128_GCM, &key[..16]),
            Suite::SealedChaCha => UnboundKey::new(&CHACHA20_POLY1305, key),
        };
        // Both lengths are their ciphers' own, so there is always a key.
        key.ok().map(LessSafeKey::new).map(Self)
    }

    /// Seal `plaintext` into `record`, as long as it, and its tag into `tag`.
    ///
    /// Errors: `local` where the lengths do not fit.
    fn seal_apart(
        &self,
        nonce: &Nonce,
        header: &Head,
        plaintext: &[u8],
        record: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), ProtocolError> {
        let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key(*nonce);
        self.0
            .seal_out_of_place_scatter(nonce, Aad::from(header), plaintext, record, &[], tag)
            .map_err(|_| not_sealed())
    }
}

impl fmt::Debug for RecordCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordCipher")
    }
}

impl Cipher for RecordCipher {
    fn seal(&self, nonce: &Nonce, header: &Head, record: &mut [u8]) -> Result<Tag, ProtocolError> {
        let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key(*nonce);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(header), record)
            .ok();
        tag.and_then(|tag| tag.as_ref().try_into().ok())
            .ok_or_else(not_sealed)
    }

    fn open(
        &self,
        nonce: &Nonce,
        header: &Head,
        record: &mut [u8],
        tag: &Tag,
    ) -> Result<(), ProtocolError> {
        let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key(*nonce);
        self.0
            .open_in_place_separate_tag(nonce, Aad::from(header), tag, record)
            .map(drop)
            .map_err(|_| broken_seal())
    }
}

fn not_sealed() -> ProtocolError {
    Refusal::Local.error("the cipher did not seal a record")
}

#[cfg(test)]
mod tests {
    use stagelink_proto::frame::{FrameRules, Kind};

    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const RECORD: usize = limits::RECORD_BYTES as usize;
    const RULES: FrameRules = FrameRules {
        checksums: false,
        payload_max: 1 << 30,
        sealed: true,
    };

    fn pair(suite: Suite) -> (Sealer, Opener) {
        let opener = Opener {
            cipher: RecordCipher::new(suite, &KEY).unwrap(),
            counter: RecordCounter::new(),
        };
        (Sealer::new(suite, &KEY).unwrap(), opener)
    }

    fn payload(bytes: usize) -> Vec<u8> {
        (0..bytes)
            .map(|at| u8::try_from((at * 31 + at / 251) % 256).unwrap())
            .collect()
    }

    fn rows_header(bytes: usize) -> Header {
        Header::for_payload(Kind::Rows, 9, 1, &payload(bytes), false).unwrap()
    }

    /// The frame of a payload, as `write` makes it.
    fn frame(sealer: &mut Sealer, rows: &[u8]) -> Vec<u8> {
        let header = rows_header(rows.len());
        let (head, records) = (header.encode_sealed(), Records::of(header.payload_bytes));
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut wire = Vec::new();
        for index in 0..records.count() {
            let lent = Lent::from_slice(rows);
            let bytes = sealer.write(&head, records, index, lent, &mut scratch);
            wire.extend_from_slice(&scratch[..bytes.unwrap()]);
        }
        wire
    }

    /// Opens a whole frame record by record, as a boundary link does.
    fn open(opener: &mut Opener, wire: &[u8], rows: &mut [u8]) -> Result<(), ProtocolError> {
        let (head, body) = wire.split_first_chunk().unwrap();
        let header = Header::parse(head, &RULES)?;
        let records = Records::of(header.payload_bytes);
        for index in 0..records.count() {
            let mut record = body[records.on_wire(index).unwrap()].to_vec();
            let mut rows = LentMut::from_slice(rows);
            opener.read(head, records, index, &mut record, &mut rows)?;
        }
        Ok(())
    }

    #[test]
    fn rows_of_every_number_of_records_come_out_as_they_went_in() {
        for suite in [Suite::SealedAes, Suite::SealedChaCha] {
            let (mut sealer, mut opener) = pair(suite);
            for bytes in [1, 20_480, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD + 5, 0] {
                let rows = payload(bytes);
                let wire = frame(&mut sealer, &rows);
                assert_eq!(rows, payload(bytes), "the caller's rows stay as they are");
                let mut got = vec![0; bytes];
                open(&mut opener, &wire, &mut got).unwrap();
                assert_eq!(got, rows, "{bytes} bytes");
            }
        }
    }

    #[test]
    fn a_message_is_sealed_and_opened_in_its_own_memory() {
        for bytes in [0, 40, RECORD, 2 * RECORD + 77] {
            let (mut sealer, mut opener) = pair(Suite::SealedAes);
            let plain = payload(bytes);
            let header = Header::for_payload(Kind::Plan, 1, 0, &plain, false).unwrap();
            let mut wire = b"queued before".to_vec();
            let start = wire.len() + limits::HEADER_BYTES;
            sealer.append(&header, &plain, &mut wire).unwrap();
            let records = Records::of(header.payload_bytes);
            assert_eq!(wire.len() - start, records.wire_bytes());
            let head = header.encode_sealed();
            opener
                .open_message(&head, records, &mut wire[start..])
                .unwrap();
            assert_eq!(wire[start..start + bytes], plain);
        }
    }

    #[test]
    fn a_message_and_rows_of_the_same_bytes_are_the_same_frame() {
        let rows = payload(RECORD + 9);
        let (mut one, mut other) = (pair(Suite::SealedAes).0, pair(Suite::SealedAes).0);
        let mut message = Vec::new();
        let header = rows_header(rows.len());
        one.append(&header, &rows, &mut message).unwrap();
        assert_eq!(message, frame(&mut other, &rows));
    }

    #[test]
    fn any_flipped_bit_is_refused_and_nothing_of_its_record_arrives() {
        let rows = payload(45);
        let good = frame(&mut pair(Suite::SealedAes).0, &rows);
        for bit in limits::HEADER_BYTES * 8..good.len() * 8 {
            let mut wire = good.clone();
            wire[bit / 8] ^= 1 << (bit % 8);
            let mut got = vec![0xEE; rows.len()];
            let error = open(&mut pair(Suite::SealedAes).1, &wire, &mut got).unwrap_err();
            assert_eq!(error.refusal, Refusal::Seal, "bit {bit}");
            assert_eq!(got, vec![0xEE; rows.len()], "bit {bit}");
        }
    }

    #[test]
    fn swapped_doubled_and_left_out_records_are_refused() {
        let rows = payload(2 * RECORD);
        let good = frame(&mut pair(Suite::SealedAes).0, &rows);
        let (head, body) = good.split_at(limits::HEADER_BYTES);
        let (first, second) = body.split_at(RECORD + TAG_BYTES);
        for (left, right) in [(second, first), (first, first), (second, second)] {
            let wire = [head, left, right].concat();
            let mut got = vec![0; rows.len()];
            let error = open(&mut pair(Suite::SealedAes).1, &wire, &mut got).unwrap_err();
            assert_eq!(error.refusal, Refusal::Seal);
            assert!(got[RECORD..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_frame_opens_once_and_in_its_turn_only() {
        let (mut sealer, mut opener) = pair(Suite::SealedChaCha);
        let (one, two) = (
            frame(&mut sealer, &payload(8)),
            frame(&mut sealer, &payload(8)),
        );
        let mut got = [0; 8];
        let early = open(&mut pair(Suite::SealedChaCha).1, &two, &mut got);
        assert_eq!(early.unwrap_err().refusal, Refusal::Seal);
        open(&mut opener, &one, &mut got).unwrap();
        let again = open(&mut opener, &one, &mut got).unwrap_err();
        assert_eq!(again.refusal, Refusal::Seal);
    }

    #[test]
    fn a_header_that_was_changed_and_repaired_opens_nothing() {
        let good = frame(&mut pair(Suite::SealedAes).0, &payload(8));
        let mut changed = rows_header(8);
        changed.sequence += 1;
        let wire = [&changed.encode_sealed()[..], &good[limits::HEADER_BYTES..]].concat();
        let error = open(&mut pair(Suite::SealedAes).1, &wire, &mut [0; 8]).unwrap_err();
        assert_eq!(error.refusal, Refusal::Seal);
    }

    #[test]
    fn psk_seals_nothing_and_no_debug_text_shows_a_key() {
        assert!(RecordCipher::new(Suite::Psk, &KEY).is_none());
        let (sealer, opener) = pair(Suite::SealedAes);
        assert_eq!(format!("{sealer:?} {opener:?}"), "Sealer(0) Opener(0)");
    }
}
