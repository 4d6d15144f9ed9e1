//! The handshake as types that consume each other, for both ends (docs/protocol.md 4).
//! It reads no socket and makes no nonce; the caller brings bytes, randomness and deadlines.
//!
//! Connector: [`Connector::start`] gives the hello; [`Greeting::challenge`] the proof;
//! [`Proving::answer`] the end. Acceptor: [`Acceptor::hello`] gives the challenge;
//! [`Greeted::proof`] the peer's identity; [`Verified::decide`] the answer.

mod acceptor;
mod connector;

use crate::{
    error::{ProtocolError, Refusal},
    frame::{FrameRules, Header, Kind, checksum},
    hello::Identity,
    limits::{HEADER_BYTES, IDENTITY_BYTES, REFUSED_BYTES, WELCOME_BYTES},
    proof::{Digest, Secret, TrafficKey},
};

pub use acceptor::{Acceptor, Decision, Greeted, Links, Verified};
pub use connector::{Connector, Greeting, NotLinked, Proving};

/// Bytes of a whole hello frame.
pub const HELLO_FRAME: usize = HEADER_BYTES + IDENTITY_BYTES;
/// Bytes of a whole challenge frame.
pub const CHALLENGE_FRAME: usize = HEADER_BYTES + 32;
/// Bytes of a whole proof frame.
pub const PROOF_FRAME: usize = HEADER_BYTES + 32;
/// Bytes of a whole welcome frame.
pub const WELCOME_FRAME: usize = HEADER_BYTES + WELCOME_BYTES;
/// Bytes of a whole refused frame.
pub const REFUSED_FRAME: usize = HEADER_BYTES + REFUSED_BYTES;

/// Something was wrong before the proof: close without a word.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("stranger: {0}")]
pub struct Stranger(pub ProtocolError);

/// A connection whose two ends have proved the key and agree.
#[derive(Clone, Debug)]
pub struct Linked {
    /// The launch that both belong to.
    pub launch_id: [u8; 16],
    /// What the peer said of itself.
    pub peer: Identity,
    /// From connector to acceptor, for the sealed suites.
    pub traffic_to_acceptor: TrafficKey,
    /// From acceptor to connector, for the sealed suites.
    pub traffic_to_connector: TrafficKey,
}

/// The rank before this one on the ring.
#[must_use]
pub const fn predecessor(rank: u32, world: u32) -> u32 {
    match rank.checked_sub(1) {
        Some(before) => before,
        None => world.saturating_sub(1),
    }
}

/// The rank after this one on the ring.
#[must_use]
pub const fn successor(rank: u32, world: u32) -> u32 {
    let after = rank.saturating_add(1);
    if after >= world { 0 } else { after }
}

fn linked(secret: &Secret, launch_id: [u8; 16], peer: Identity, th3: &Digest) -> Linked {
    Linked {
        launch_id,
        peer,
        traffic_to_acceptor: secret.traffic_to_acceptor(th3),
        traffic_to_connector: secret.traffic_to_connector(th3),
    }
}

/// A whole handshake frame; `N` is the header and the parts together.
fn frame<const N: usize>(
    kind: Kind,
    sequence: u64,
    parts: &[&[u8]],
) -> Result<[u8; N], ProtocolError> {
    let mut frame = [0; N];
    let (header, payload) = frame
        .split_first_chunk_mut::<HEADER_BYTES>()
        .ok_or_else(|| Refusal::Local.error("a frame is longer than its header"))?;
    let bytes = parts.iter().flat_map(|part| part.iter());
    for (to, from) in payload.iter_mut().zip(bytes) {
        *to = *from;
    }
    *header = Header::for_payload(kind, sequence, 0, payload, true)?.encode();
    Ok(frame)
}

/// The payload of a whole frame of a known kind.
fn open_frame(frame: &[u8], kind: Kind) -> Result<&[u8], ProtocolError> {
    let (header, payload) = frame
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or_else(|| Refusal::Truncated.error("expected a whole header"))?;
    let header = Header::parse(header, &FrameRules::default())?;
    expect_sequence(&header)?;
    if header.kind != kind {
        return Err(unexpected(header.kind));
    }
    let got = u64::try_from(payload.len()).unwrap_or(u64::MAX);
    if got < u64::from(header.payload_bytes) {
        return Err(Refusal::Truncated.numbers("payload bytes", header.payload_bytes, got));
    }
    if got > u64::from(header.payload_bytes) {
        return Err(Refusal::PayloadSize.numbers("payload bytes", header.payload_bytes, got));
    }
    header.check_payload(checksum(payload))?;
    Ok(payload)
}

/// Each handshake kind has its own sequence (section 3.1); other kinds are unexpected anyway.
fn expect_sequence(header: &Header) -> Result<(), ProtocolError> {
    let expected: u64 = match header.kind {
        Kind::Hello | Kind::Challenge => 0,
        Kind::Proof | Kind::Welcome | Kind::Refused => 1,
        _ => return Ok(()),
    };
    if header.sequence != expected {
        return Err(Refusal::BadSequence.numbers("sequence", expected, header.sequence));
    }
    Ok(())
}

const fn unexpected(kind: Kind) -> ProtocolError {
    Refusal::UnexpectedKind.named("the handshake's next frame", kind.name())
}

fn array_of<const N: usize>(payload: &[u8]) -> Result<[u8; N], ProtocolError> {
    payload
        .try_into()
        .map_err(|_| Refusal::PayloadSize.error("expected the payload of the frame's kind"))
}

/// A payload whose last 32 bytes are a MAC over the first `N`.
fn split<const N: usize>(payload: &[u8]) -> Result<(&[u8; N], &Digest), ProtocolError> {
    payload
        .split_first_chunk::<N>()
        .and_then(|(head, mac)| Some((head, mac.try_into().ok()?)))
        .ok_or_else(|| Refusal::PayloadSize.error("expected the payload of the frame's kind"))
}
