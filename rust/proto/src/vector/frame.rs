//! Judges vectors of kind `frame`: one frame alone, by every rule that needs no state.
//! The state table is judged in `link`.

use alloc::format;

use super::{BadVector, Outcome, Vector, value::fields_of};
use crate::{
    bytes::to_usize,
    error::{ProtocolError, Refusal},
    frame::{FrameRules, Header, checksum},
    incoming::{Incoming, Want},
    limits,
    message::{Message, Surroundings},
};

pub(super) fn judge(vector: &Vector<'_>) -> Result<(), Outcome> {
    let context = &vector.context;
    let rules = FrameRules {
        checksums: context.flag("checksum", true),
        payload_max: context.number("payload_max", limits::PAYLOAD_BYTES_MAX.into())?,
        sealed: false,
    };
    let around = Surroundings {
        rank: context.number("rank", 1)?,
        world: context.number("world", 3)?,
        layers: context.number("layers", 30)?,
        plan_bounds: context.plan_bounds()?,
    };
    let sequence = context.optional("sequence")?;
    let (header, payload) = read_frame(vector.file(0)?, rules, |header| match sequence {
        Some(expected) if header.sequence != expected => {
            Err(Refusal::BadSequence.numbers("sequence", expected, header.sequence))
        }
        _ => Ok(()),
    })?;
    let message = if header.kind.is_handshake() {
        None
    } else {
        Some(Message::parse(&header, payload, &around)?)
    };
    vector.expect(&fields_of(&header, message.as_ref()))?;
    Ok(())
}

/// Reads the only frame of `bytes` as a connection would: `check` sees the header before the
/// payload is looked at. Errors: every rule of the header, `truncated`, `payload_checksum`.
pub(super) fn read_frame(
    bytes: &[u8],
    rules: FrameRules,
    check: impl FnOnce(&Header) -> Result<(), ProtocolError>,
) -> Result<(Header, &[u8]), Outcome> {
    let mut incoming = Incoming::new(rules);
    let space = incoming.header_space();
    let taken = space.len().min(bytes.len());
    let (head, rest) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
    for (to, from) in space.iter_mut().zip(head) {
        *to = *from;
    }
    let Some(header) = incoming.header_received(taken)? else {
        incoming.end()?;
        return Err(super::truncated().into());
    };
    check(&header)?;
    let due = to_usize(header.payload_bytes);
    incoming.payload_received(due.min(rest.len()))?;
    if !matches!(incoming.want(), Want::Payload { bytes: 0, .. }) {
        incoming.end()?;
        return Err(super::truncated().into());
    }
    let (payload, more) = rest.split_at_checked(due).unwrap_or((rest, &[]));
    if !more.is_empty() {
        return Err(BadVector(format!("{} bytes follow the frame", more.len())).into());
    }
    incoming.finish(checksum(payload))?;
    Ok((header, payload))
}
