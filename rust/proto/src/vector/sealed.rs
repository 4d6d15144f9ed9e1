//! Judges vectors of kind `sealed` and `sealing`: frames of one direction of a sealed link.
//! The cipher is the caller's; sequence and state table are judged in `link`.

use alloc::{boxed::Box, format, string::String, vec, vec::Vec};

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{BadVector, Ciphers, Context, Outcome, Vector, from_hex, hex, missing, truncated};
use crate::{
    bytes::to_usize,
    error::ProtocolError,
    frame::{FrameRules, Header},
    hello::Suite,
    limits::HEADER_BYTES,
    message::{Message, Surroundings},
    seal::{Cipher, RecordCounter, Records},
};

/// Frames as they crossed, all but the last accepted; each is opened, parsed, and made again.
pub(super) fn judge_frames(vector: &Vector<'_>, ciphers: Ciphers<'_>) -> Result<(), Outcome> {
    let context = &vector.context;
    let cipher = cipher_of(context, ciphers)?;
    let mut opened = RecordCounter::at(context.number("counter", 0)?);
    let mut sealed = RecordCounter::at(opened.next());
    let around = Surroundings {
        rank: context.number("rank", 1)?,
        world: context.number("world", 3)?,
        layers: context.number("layers", 30)?,
        plan_bounds: context.plan_bounds()?,
    };
    let mut payloads = Vec::new();
    for frame in &vector.files {
        let (header, payload) = open(frame, &*cipher, &mut opened)?;
        Message::parse(&header, &payload, &around)?;
        let again = seal(&header.encode_sealed(), &payload, &*cipher, &mut sealed)?;
        if again != *frame {
            let (made, given) = (hex(&again), hex(frame));
            return Err(BadVector(format!("made {made}, the vector has {given}")).into());
        }
        payloads.push(Value::from(hex(&payload)));
    }
    let mut value = Map::new();
    value.insert("payloads".into(), payloads.into());
    vector.expect(&value)?;
    Ok(())
}

/// A header, and a payload told by one byte and its count: its records are too large for a file.
pub(super) fn judge_sealing(vector: &Vector<'_>, ciphers: Ciphers<'_>) -> Result<(), Outcome> {
    let context = &vector.context;
    let cipher = cipher_of(context, ciphers)?;
    let start = context.number("counter", 0)?;
    let head = vector.file(0)?;
    let head: &[u8; HEADER_BYTES] = head.try_into().map_err(|_| missing("a header"))?;
    let header = Header::parse(head, &rules())?;
    let [byte] = context.bytes::<1>("byte")?;
    let payload = vec![byte; to_usize(header.payload_bytes)];
    let wire = seal(head, &payload, &*cipher, &mut RecordCounter::at(start))?;
    let (_, again) = open(&wire, &*cipher, &mut RecordCounter::at(start))?;
    if again != payload {
        return Err(BadVector("the records do not open to the payload".into()).into());
    }
    let mut tags = Vec::new();
    let records = Records::of(header.payload_bytes);
    let body = wire.get(HEADER_BYTES..).unwrap_or_default();
    for index in 0..records.count() {
        let record = records
            .on_wire(index)
            .and_then(|range| body.get(range))
            .and_then(<[u8]>::last_chunk::<16>);
        tags.push(Value::from(record.map_or_else(String::new, |tag| hex(tag))));
    }
    let mut value = Map::new();
    value.insert("wire_bytes".into(), wire.len().into());
    value.insert("tags".into(), tags.into());
    value.insert("wire_sha256".into(), hex(&Sha256::digest(&wire)).into());
    vector.expect(&value)?;
    Ok(())
}

fn rules() -> FrameRules {
    FrameRules {
        checksums: false,
        sealed: true,
        ..FrameRules::default()
    }
}

fn cipher_of(context: &Context<'_>, ciphers: Ciphers<'_>) -> Result<Box<dyn Cipher>, BadVector> {
    let suite = Suite::from_number(context.number("suite", 0)?).ok_or_else(|| missing("suite"))?;
    let key = from_hex(context.text("traffic")).ok_or_else(|| missing("traffic"))?;
    ciphers(suite, &key).ok_or_else(|| missing("a cipher for the suite"))
}

fn open(
    frame: &[u8],
    cipher: &dyn Cipher,
    counter: &mut RecordCounter,
) -> Result<(Header, Vec<u8>), Outcome> {
    let (head, body) = frame
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or_else(truncated)?;
    let header = Header::parse(head, &rules())?;
    header.check_payload(0)?;
    let records = Records::of(header.payload_bytes);
    let mut payload = Vec::new();
    for index in 0..records.count() {
        let range = records.on_wire(index).unwrap_or_default();
        let (record, tag) = body
            .get(range)
            .and_then(<[u8]>::split_last_chunk::<16>)
            .ok_or_else(truncated)?;
        let from = payload.len();
        payload.extend_from_slice(record);
        let record = payload.get_mut(from..).unwrap_or_default();
        cipher.open(&counter.take()?, head, record, tag)?;
    }
    if body.len() > records.wire_bytes() {
        return Err(BadVector("bytes follow the frame".into()).into());
    }
    Ok((header, payload))
}

fn seal(
    head: &[u8; HEADER_BYTES],
    payload: &[u8],
    cipher: &dyn Cipher,
    counter: &mut RecordCounter,
) -> Result<Vec<u8>, ProtocolError> {
    let records = Records::of(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    let mut wire = Vec::from(*head);
    for index in 0..records.count() {
        let range = records.plaintext(index).unwrap_or_default();
        let from = wire.len();
        wire.extend_from_slice(payload.get(range).unwrap_or_default());
        let record = wire.get_mut(from..).unwrap_or_default();
        let tag = cipher.seal(&counter.take()?, head, record)?;
        wire.extend_from_slice(&tag);
    }
    Ok(wire)
}
