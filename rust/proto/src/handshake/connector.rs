//! The connecting end: hello, proof, and the verdict on the answer (docs/protocol.md 4).
//! It shows nothing of the acceptor's checks; those are in `acceptor`.

use alloc::{boxed::Box, string::String};

use super::{
    HELLO_FRAME, Linked, PROOF_FRAME, array_of, expect_sequence, frame, linked, open_frame, split,
    unexpected,
};
use crate::{
    error::{ProtocolError, Refusal},
    frame::{FrameRules, Header, Kind},
    hello::{Identity, LAUNCH_UNKNOWN, Link, Role, Settings},
    limits::{HEADER_BYTES, IDENTITY_BYTES, REFUSED_BYTES, REFUSED_PROVED_BYTES, WELCOME_BYTES},
    proof::{self, Digest, Secret, TrafficKey},
    refused::Refused,
};

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
    /// What that fate is sealed with, where it answers the welcome of a sealed link.
    pub fate_key: Option<Box<TrafficKey>>,
}

impl NotLinked {
    /// An end without a word: the other side is not known to have the key.
    #[must_use]
    pub const fn close(error: ProtocolError) -> Self {
        Self {
            error,
            text: None,
            fate_due: false,
            fate_key: None,
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
    /// Answers the whole challenge frame with the proof. Errors: header rules, `nonce_reflected`.
    pub fn challenge(self, challenge: &[u8]) -> Result<(Proving, [u8; PROOF_FRAME]), NotLinked> {
        let payload = open_frame(challenge, Kind::Challenge).map_err(NotLinked::close)?;
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
        expect_sequence(&header)?;
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
                let payload = open_frame(frame, kind).map_err(NotLinked::close)?;
                self.welcome(&array_of(payload).map_err(NotLinked::close)?)
            }
            Kind::Refused => {
                let payload = open_frame(frame, kind).map_err(NotLinked::close)?;
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
        let th3 = proof::ready_hash(&th2, mac);
        let peer = Identity::parse(identity, Role::Acceptor)
            .and_then(|peer| self.check(&peer).map(|()| peer))
            .map_err(|error| self.mismatch(error, &th3))?;
        Ok(linked(secret, peer.launch_id, peer, &th3))
    }

    /// The acceptor has the key and counts the link as made: it is told what does not fit.
    fn mismatch(&self, error: ProtocolError, th3: &Digest) -> NotLinked {
        let is_sealed = self.own.settings.suite.is_sealed();
        NotLinked {
            fate_due: true,
            fate_key: is_sealed.then(|| Box::new(self.own.secret.traffic_to_acceptor(th3))),
            ..NotLinked::close(error)
        }
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
        settings.check_ring(peer, Some(*link), Some(settings.lane))?;
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
            fate_key: None,
        }
    }
}

fn truncated() -> NotLinked {
    NotLinked::close(Refusal::Truncated.error("expected a whole header"))
}
