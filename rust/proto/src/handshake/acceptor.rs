//! The accepting end: challenge, the peer's proof, and the answer (docs/protocol.md 4).
//! Before the proof it says nothing but the challenge; whether a place is free the caller knows.

use super::{
    CHALLENGE_FRAME, Linked, PROOF_FRAME, REFUSED_FRAME, Stranger, WELCOME_FRAME, array_of, frame,
    linked, open_frame, predecessor,
};
use crate::{
    error::{ProtocolError, Refusal},
    frame::Kind,
    hello::{Identity, LAUNCH_UNKNOWN, Link, Role, Settings},
    proof::{self, Digest, Secret},
    refused::Refused,
};

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

    /// Answers a whole hello frame with the challenge; the nonce is fresh from the operating
    /// system.
    pub fn hello(
        self,
        hello: &[u8],
        nonce: [u8; 32],
    ) -> Result<(Greeted, [u8; CHALLENGE_FRAME]), Stranger> {
        let payload = open_frame(hello, Kind::Hello).map_err(Stranger)?;
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
    /// Checks the whole proof frame; from here on the peer holds the key and is told what is wrong.
    pub fn proof(self, proof: &[u8]) -> Result<Verified, Stranger> {
        let payload = open_frame(proof, Kind::Proof).map_err(Stranger)?;
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
            proof: array_of(proof).map_err(Stranger)?,
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
    /// Who the peer says it is; its rank, link and lane name the place that it asks for.
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

    /// The checks of [`Self::decide`] without its answer.
    pub fn check(&self, place_is_free: bool) -> Result<(), ProtocolError> {
        let Acceptor {
            settings, links, ..
        } = &self.own;
        let peer = &self.peer;
        let link = match links {
            Links::Ring => Some(Link::Ring),
            Links::Control => Some(Link::Control),
            Links::Both => None,
        };
        settings.check_ring(peer, link, None)?;
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

    /// The welcome, whatever [`Self::check`] says: only for a caller that has made its own checks.
    pub(crate) fn welcome(self) -> Result<(Linked, [u8; WELCOME_FRAME]), ProtocolError> {
        let Self {
            own,
            peer,
            nonce,
            th1,
            proof,
        } = self;
        let mut settings = own.settings;
        settings.lane = peer.lane;
        let identity = settings
            .identity(Role::Acceptor, peer.link, peer.rank, nonce)
            .encode();
        let th2 = proof::welcome_hash(&th1, &proof, &identity);
        let mac = own.secret.acceptor_mac(&th2);
        let welcome = frame(Kind::Welcome, 1, &[&identity, &mac])?;
        let th3 = proof::ready_hash(&th2, &mac);
        Ok((linked(&own.secret, settings.launch_id, peer, &th3), welcome))
    }
}
