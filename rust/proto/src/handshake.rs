//! The handshake as types that consume each other, for both ends (docs/protocol.md 4).
//! It reads no socket and makes no nonce; the caller brings bytes, randomness and deadlines.
//!
//! Connector: [`Connector::start`] gives the hello; [`Greeting::challenge`] the proof;
//! [`Proving::answer`] the end. Acceptor: [`Acceptor::hello`] gives the challenge;
//! [`Greeted::proof`] the peer's identity; [`Verified::decide`] the answer.

use alloc::string::String;

use zeroize::Zeroizing;

use crate::{
    error::{ProtocolError, Refusal},
    frame::{FrameRules, Header, Kind, checksum},
    hello::{Identity, LAUNCH_UNKNOWN, Link, Role, Settings},
    limits::{HEADER_BYTES, IDENTITY_BYTES, REFUSED_BYTES, REFUSED_PROVED_BYTES, WELCOME_BYTES},
    proof::{self, Digest, Secret},
    refused::Refused,
};

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
    pub traffic_to_acceptor: Zeroizing<Digest>,
    /// From acceptor to connector, for the sealed suites.
    pub traffic_to_connector: Zeroizing<Digest>,
}

/// Why a connector's handshake failed, and what it still has to say.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{error}")]
pub struct NotLinked {
    /// What this end reports.
    pub error: ProtocolError,
    /// The text of the acceptor's refused message, if that is what came.
    pub text: Option<String>,
    /// A fate with the error's refusal goes to the acceptor (sequence 2) before the close.
    pub fate_due: bool,
}

impl NotLinked {
    fn close(error: ProtocolError) -> Self {
        Self {
            error,
            text: None,
            fate_due: false,
        }
    }

    fn fate(error: ProtocolError) -> Self {
        Self {
            error,
            text: None,
            fate_due: true,
        }
    }
}

/// The connecting end before its first byte.
#[derive(Clone, Debug)]
pub struct Connector {
    secret: Secret,
    settings: Settings,
    link: Link,
    peer_rank: u32,
}

impl Connector {
    /// One end of `link` that dials `peer_rank`.
    #[must_use]
    pub const fn new(secret: Secret, settings: Settings, link: Link, peer_rank: u32) -> Self {
        Self {
            secret,
            settings,
            link,
            peer_rank,
        }
    }

    /// The hello, with a nonce that is fresh from the operating system.
    pub fn start(self, nonce: [u8; 32]) -> Result<(Greeting, [u8; HELLO_FRAME]), ProtocolError> {
        let Self {
            settings,
            link,
            peer_rank,
            ..
        } = &self;
        let identity = settings
            .identity(Role::Connector, *link, *peer_rank, nonce)
            .encode();
        let hello = frame::<HELLO_FRAME>(Kind::Hello, 0, &[&identity])?;
        Ok((
            Greeting {
                own: self,
                nonce,
                hello,
            },
            hello,
        ))
    }
}

/// The connecting end that waits for the challenge.
#[derive(Clone, Debug)]
pub struct Greeting {
    own: Connector,
    nonce: [u8; 32],
    hello: [u8; HELLO_FRAME],
}

impl Greeting {
    /// Answers the challenge with the proof. Errors: header rules, `nonce_reflected`.
    pub fn challenge(
        self,
        challenge: &[u8; CHALLENGE_FRAME],
    ) -> Result<(Proving, [u8; PROOF_FRAME]), NotLinked> {
        let payload = open_frame(challenge, Kind::Challenge, 0).map_err(NotLinked::close)?;
        let theirs = array_of::<32>(payload).map_err(NotLinked::close)?;
        if theirs == self.nonce {
            let error = Refusal::NonceReflected.error("expected another nonce than the own one");
            return Err(NotLinked::close(error));
        }
        let th1 = proof::hello_hash(&self.hello, challenge);
        let mac = self.own.secret.connector_mac(&th1);
        let proof = frame::<PROOF_FRAME>(Kind::Proof, 1, &[&mac]).map_err(NotLinked::close)?;
        Ok((
            Proving {
                own: self.own,
                challenge: theirs,
                th1,
                proof,
            },
            proof,
        ))
    }
}

/// The connecting end that waits for welcome or refused.
#[derive(Clone, Debug)]
pub struct Proving {
    own: Connector,
    challenge: [u8; 32],
    th1: Digest,
    proof: [u8; PROOF_FRAME],
}

impl Proving {
    /// How many payload bytes follow this header. Errors: header rules, `unexpected_kind`.
    pub fn payload_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, ProtocolError> {
        let header = Header::parse(header, &FrameRules::default())?;
        expect_sequence(&header, 1)?;
        match header.kind {
            Kind::Welcome => Ok(WELCOME_BYTES),
            Kind::Refused => Ok(REFUSED_BYTES),
            other => Err(unexpected(other)),
        }
    }

    /// The connection was closed instead of an answer: the keys may differ.
    #[must_use]
    pub fn closed(self) -> NotLinked {
        NotLinked::close(Refusal::Key.error(
            "the acceptor closed after our proof; the two keys differ or it expects another peer",
        ))
    }

    /// Judges the whole welcome or refused frame.
    pub fn answer(self, frame: &[u8]) -> Result<Linked, NotLinked> {
        let (header, _) = frame
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or_else(truncated)?;
        let kind = Header::parse(header, &FrameRules::default())
            .map_err(NotLinked::close)?
            .kind;
        match kind {
            Kind::Welcome => {
                let payload = open_frame(frame, kind, 1).map_err(NotLinked::close)?;
                self.welcome(&array_of(payload).map_err(NotLinked::close)?)
            }
            Kind::Refused => {
                let payload = open_frame(frame, kind, 1).map_err(NotLinked::close)?;
                Err(self.refused(&array_of(payload).map_err(NotLinked::close)?))
            }
            other => Err(NotLinked::close(unexpected(other))),
        }
    }

    fn welcome(self, payload: &[u8; WELCOME_BYTES]) -> Result<Linked, NotLinked> {
        let (identity, mac) = split::<IDENTITY_BYTES>(payload).map_err(NotLinked::close)?;
        let th2 = proof::welcome_hash(&self.th1, &self.proof, identity);
        let secret = &self.own.secret;
        if !proof::macs_agree(&secret.acceptor_mac(&th2), mac) {
            let error = Refusal::Key.error("the acceptor's proof does not match our key");
            return Err(NotLinked::close(error));
        }
        let peer = Identity::parse(identity, Role::Acceptor).map_err(NotLinked::fate)?;
        self.check(&peer).map_err(NotLinked::fate)?;
        Ok(linked(
            secret,
            peer.launch_id,
            peer,
            &proof::ready_hash(&th2, mac),
        ))
    }

    fn check(&self, peer: &Identity) -> Result<(), ProtocolError> {
        let Connector {
            settings,
            link,
            peer_rank,
            ..
        } = &self.own;
        if peer.nonce != self.challenge {
            return Err(Refusal::NonceChanged.error("expected the challenge's nonce again"));
        }
        settings.check_ring(peer, Some(*link))?;
        if peer.rank != *peer_rank {
            return Err(Refusal::Rank.numbers("rank", *peer_rank, peer.rank));
        }
        if peer.peer_rank != settings.rank {
            return Err(Refusal::PeerRank.numbers("peer_rank", settings.rank, peer.peer_rank));
        }
        let learns = *link == Link::Control && settings.launch_id == LAUNCH_UNKNOWN;
        let agrees = if learns {
            peer.launch_id != LAUNCH_UNKNOWN
        } else {
            peer.launch_id == settings.launch_id
        };
        if !agrees {
            return Err(Refusal::Launch.error("expected the launch id of this ring"));
        }
        settings.check_capacity(peer)
    }

    fn refused(self, payload: &[u8; REFUSED_BYTES]) -> NotLinked {
        let (proved, mac) = match split::<REFUSED_PROVED_BYTES>(payload) {
            Ok(parts) => parts,
            Err(error) => return NotLinked::close(error),
        };
        let thr = proof::refused_hash(&self.th1, &self.proof, proved);
        if !proof::macs_agree(&self.own.secret.refused_mac(&thr), mac) {
            return NotLinked::close(
                Refusal::Key.error("a refusal came that the key did not make"),
            );
        }
        let refused = match Refused::parse(proved) {
            Ok(refused) => refused,
            Err(error) => return NotLinked::close(error),
        };
        let difference = (refused.refusal == Refusal::Fingerprint)
            .then(|| {
                self.own
                    .settings
                    .fingerprint
                    .first_difference(&refused.heads)
            })
            .flatten();
        let refusal = difference.unwrap_or(refused.refusal);
        NotLinked {
            error: refusal.text(alloc::format!("the acceptor refused: {}", refused.text)),
            text: Some(refused.text),
            fate_due: difference.is_some(),
        }
    }
}

/// The accepting end before its first byte.
#[derive(Clone, Debug)]
pub struct Acceptor {
    secret: Secret,
    settings: Settings,
    links: Links,
}

/// Which links an acceptor takes at the moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Links {
    /// Only boundary links, as every follower.
    Ring,
    /// Only control links, as the lead before its roster.
    Control,
    /// Both, as the lead.
    Both,
}

impl Acceptor {
    /// One listening end that takes `links`.
    #[must_use]
    pub const fn new(secret: Secret, settings: Settings, links: Links) -> Self {
        Self {
            secret,
            settings,
            links,
        }
    }

    /// Answers a hello with the challenge, with a nonce fresh from the operating system.
    pub fn hello(
        self,
        hello: &[u8; HELLO_FRAME],
        nonce: [u8; 32],
    ) -> Result<(Greeted, [u8; CHALLENGE_FRAME]), Stranger> {
        let payload = open_frame(hello, Kind::Hello, 0).map_err(Stranger)?;
        let block = array_of(payload).map_err(Stranger)?;
        let peer = Identity::parse(&block, Role::Connector).map_err(Stranger)?;
        if peer.nonce == nonce {
            let error = Refusal::NonceReflected.error("expected another nonce than the own one");
            return Err(Stranger(error));
        }
        let challenge =
            frame::<CHALLENGE_FRAME>(Kind::Challenge, 0, &[&nonce]).map_err(Stranger)?;
        let th1 = proof::hello_hash(hello, &challenge);
        Ok((
            Greeted {
                own: self,
                peer,
                nonce,
                th1,
            },
            challenge,
        ))
    }
}

/// The accepting end that waits for the proof.
#[derive(Clone, Debug)]
pub struct Greeted {
    own: Acceptor,
    peer: Identity,
    nonce: [u8; 32],
    th1: Digest,
}

impl Greeted {
    /// Checks the proof; from here on the peer holds the key and is told what is wrong.
    pub fn proof(self, proof: &[u8; PROOF_FRAME]) -> Result<Verified, Stranger> {
        let payload = open_frame(proof, Kind::Proof, 1).map_err(Stranger)?;
        let mac = array_of::<32>(payload).map_err(Stranger)?;
        if !proof::macs_agree(&self.own.secret.connector_mac(&self.th1), &mac) {
            return Err(Stranger(
                Refusal::Key.error("the proof does not match our key"),
            ));
        }
        let Self {
            own,
            peer,
            nonce,
            th1,
        } = self;
        Ok(Verified {
            own,
            peer,
            nonce,
            th1,
            proof: *proof,
        })
    }
}

/// The accepting end whose peer has proved the key.
#[derive(Clone, Debug)]
pub struct Verified {
    own: Acceptor,
    peer: Identity,
    nonce: [u8; 32],
    th1: Digest,
    proof: [u8; PROOF_FRAME],
}

/// What an acceptor answers, and the frame that says so.
#[derive(Clone, Debug)]
pub enum Decision {
    /// The link is made.
    Welcome(Linked, [u8; WELCOME_FRAME]),
    /// The peer is refused by name; the connection then waits for a fate and closes.
    Refuse(ProtocolError, [u8; REFUSED_FRAME]),
}

impl Verified {
    /// Who the peer says it is; its rank and link name the place that it asks for.
    #[must_use]
    pub const fn peer(&self) -> &Identity {
        &self.peer
    }

    /// Makes every check of section 4.1 in its order; `place_is_free` says whether the link of
    /// [`Self::peer`] is still to be made.
    pub fn decide(self, place_is_free: bool) -> Result<Decision, ProtocolError> {
        match self.check(place_is_free) {
            Ok(()) => {
                let (linked, welcome) = self.welcome()?;
                Ok(Decision::Welcome(linked, welcome))
            }
            Err(error) => {
                let text = alloc::format!("{}", error.detail);
                let frame = self.refuse(error.refusal, &text)?;
                Ok(Decision::Refuse(error, frame))
            }
        }
    }

    /// The refused frame for a reason of the caller's own; the text is cut to 156 bytes.
    pub fn refuse(
        self,
        refusal: Refusal,
        text: &str,
    ) -> Result<[u8; REFUSED_FRAME], ProtocolError> {
        let heads = self.own.settings.fingerprint.heads();
        let proved = Refused::new(refusal, text, heads).encode();
        let thr = proof::refused_hash(&self.th1, &self.proof, &proved);
        let mac = self.own.secret.refused_mac(&thr);
        frame(Kind::Refused, 1, &[&proved, &mac])
    }

    fn check(&self, place_is_free: bool) -> Result<(), ProtocolError> {
        let Acceptor {
            settings, links, ..
        } = &self.own;
        let peer = &self.peer;
        let link = match links {
            Links::Ring => Some(Link::Ring),
            Links::Control => Some(Link::Control),
            Links::Both => None,
        };
        settings.check_ring(peer, link)?;
        match peer.link {
            Link::Control if !(1..settings.world).contains(&peer.rank) => {
                let last = settings.world.saturating_sub(1);
                return Err(Refusal::Rank.outside("rank", 1_u32, last, peer.rank));
            }
            Link::Ring if peer.rank != predecessor(settings.rank, settings.world) => {
                let expected = predecessor(settings.rank, settings.world);
                return Err(Refusal::Rank.numbers("rank", expected, peer.rank));
            }
            Link::Control | Link::Ring => {}
        }
        if peer.peer_rank != settings.rank {
            return Err(Refusal::PeerRank.numbers("peer_rank", settings.rank, peer.peer_rank));
        }
        let may_learn = peer.link == Link::Control && peer.launch_id == LAUNCH_UNKNOWN;
        if !may_learn && peer.launch_id != settings.launch_id {
            return Err(Refusal::Launch.error("expected the launch id of this ring"));
        }
        if !place_is_free {
            return Err(Refusal::RankTaken.text(alloc::format!("rank {} is here", peer.rank)));
        }
        settings.check_capacity(peer)
    }

    fn welcome(self) -> Result<(Linked, [u8; WELCOME_FRAME]), ProtocolError> {
        let Self {
            own,
            peer,
            nonce,
            th1,
            proof,
        } = self;
        let identity = own
            .settings
            .identity(Role::Acceptor, peer.link, peer.rank, nonce)
            .encode();
        let th2 = proof::welcome_hash(&th1, &proof, &identity);
        let mac = own.secret.acceptor_mac(&th2);
        let welcome = frame(Kind::Welcome, 1, &[&identity, &mac])?;
        let th3 = proof::ready_hash(&th2, &mac);
        Ok((
            linked(&own.secret, own.settings.launch_id, peer, &th3),
            welcome,
        ))
    }
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

/// The payload of a whole frame of a known kind and sequence.
fn open_frame(frame: &[u8], kind: Kind, sequence: u64) -> Result<&[u8], ProtocolError> {
    let (header, payload) = frame
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or_else(|| Refusal::Truncated.error("expected a whole header"))?;
    let header = Header::parse(header, &FrameRules::default())?;
    expect_sequence(&header, sequence)?;
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

fn expect_sequence(header: &Header, expected: u64) -> Result<(), ProtocolError> {
    if header.sequence != expected {
        return Err(Refusal::BadSequence.numbers("sequence", expected, header.sequence));
    }
    Ok(())
}

fn unexpected(kind: Kind) -> ProtocolError {
    Refusal::UnexpectedKind.text(alloc::format!(
        "{} may not come at this point of the handshake",
        kind.name()
    ))
}

fn truncated() -> NotLinked {
    NotLinked::close(Refusal::Truncated.error("expected a whole header"))
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
