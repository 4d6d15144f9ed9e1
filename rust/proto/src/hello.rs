//! The identity block: who a connector or an acceptor says it is (docs/protocol.md 4.1).
//! Parsing checks what a stranger may not get wrong; `check` compares with what is expected.

use crate::{
    bytes::{Fixed, Put as _, Reader},
    error::{ProtocolError, Refusal},
    fingerprint::Fingerprint,
    limits,
};

/// The protocol's version.
pub const PROTOCOL: u16 = 1;
/// Option bit 0: rows and messages carry no payload checksum.
pub const OPTION_NO_CHECKSUM: u32 = 1;
/// A launch id that is not known yet.
pub const LAUNCH_UNKNOWN: [u8; 16] = [0; 16];

/// Which side of a connection speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It dialled, and proves first.
    Connector,
    /// It listened.
    Acceptor,
}

impl Role {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Connector => 1,
            Self::Acceptor => 2,
        }
    }
}

/// Which of the two links a connection is.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Link {
    /// A boundary link, rank i to i + 1.
    Ring,
    /// A control link, a follower to the lead.
    Control,
}

impl Link {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Ring => 1,
            Self::Control => 2,
        }
    }

    /// The link of a number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Ring),
            2 => Some(Self::Control),
            _ => None,
        }
    }
}

/// How a link is protected; never negotiated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Suite {
    /// Both ends prove the shared key; frames travel in the clear.
    #[default]
    Psk,
    /// As `Psk`, then records sealed with AES-128-GCM.
    SealedAes,
    /// As `Psk`, then records sealed with ChaCha20-Poly1305.
    SealedChaCha,
}

impl Suite {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Psk => 1,
            Self::SealedAes => 2,
            Self::SealedChaCha => 3,
        }
    }

    /// The suite of a number, if there is one.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Psk),
            2 => Some(Self::SealedAes),
            3 => Some(Self::SealedChaCha),
            _ => None,
        }
    }

    /// The name that settings use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Psk => "psk",
            Self::SealedAes => "aes-128-gcm",
            Self::SealedChaCha => "chacha20-poly1305",
        }
    }

    /// The suite of a name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Psk, Self::SealedAes, Self::SealedChaCha]
            .into_iter()
            .find(|suite| suite.name() == name)
    }

    /// True where every frame after the handshake is sealed.
    #[must_use]
    pub const fn is_sealed(self) -> bool {
        !matches!(self, Self::Psk)
    }
}

/// An identity block as it came: role, link, reserved bytes are legal, the rest is a claim.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Version of the protocol.
    pub protocol: u16,
    /// Number of the suite.
    pub suite: u16,
    /// Who speaks.
    pub role: Role,
    /// Which link this is.
    pub link: Link,
    /// Number of the lane: 0 the row lane, 1.. a bulk lane of a ring link.
    pub lane: u8,
    /// Bulk lanes of a ring link.
    pub lanes: u8,
    /// The speaker's rank.
    pub rank: u32,
    /// The rank that the speaker believes it talks to.
    pub peer_rank: u32,
    /// Stages of the ring.
    pub world: u32,
    /// Option bits.
    pub options: u32,
    /// Largest payload that the speaker takes.
    pub payload_max: u64,
    /// Launch id, zeros where it is not known yet.
    pub launch_id: [u8; 16],
    /// Nonce; in a welcome, the challenge again.
    pub nonce: [u8; 32],
    /// Digest of the fingerprint.
    pub fingerprint: [u8; 32],
}

impl Identity {
    /// Reads a block. Errors: `bad_role` for any role but `speaker`, `bad_link`,
    /// `reserved_not_zero`.
    pub fn parse(
        bytes: &[u8; limits::IDENTITY_BYTES],
        speaker: Role,
    ) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(bytes);
        let (protocol, suite) = (fields.u16()?, fields.u16()?);
        let role = fields.u8()?;
        if role != speaker.number() {
            return Err(Refusal::BadRole.numbers("role", speaker.number(), role));
        }
        let link = fields.u8()?;
        let link = Link::from_number(link)
            .ok_or_else(|| Refusal::BadLink.outside("link", 1_u8, 2_u8, link))?;
        let (lane, lanes) = (fields.u8()?, fields.u8()?);
        let (rank, peer_rank) = (fields.u32()?, fields.u32()?);
        let (world, options) = (fields.u32()?, fields.u32()?);
        let payload_max = fields.u64()?;
        let launch_id = fields.array()?;
        fields.reserved(16)?;
        let (nonce, fingerprint) = (fields.array()?, fields.array()?);
        fields.finish()?;
        Ok(Self {
            protocol,
            suite,
            role: speaker,
            link,
            lane,
            lanes,
            rank,
            peer_rank,
            world,
            options,
            payload_max,
            launch_id,
            nonce,
            fingerprint,
        })
    }

    /// The block's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; limits::IDENTITY_BYTES] {
        let mut out = Fixed::<{ limits::IDENTITY_BYTES }>::new();
        out.u16(self.protocol);
        out.u16(self.suite);
        out.u8(self.role.number());
        out.u8(self.link.number());
        out.u8(self.lane);
        out.u8(self.lanes);
        out.u32(self.rank);
        out.u32(self.peer_rank);
        out.u32(self.world);
        out.u32(self.options);
        out.u64(self.payload_max);
        out.bytes(&self.launch_id);
        out.zeros(16);
        out.bytes(&self.nonce);
        out.bytes(&self.fingerprint);
        out.finish()
    }
}

/// One end's own settings for one link; what the other end's identity must agree with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The link's suite.
    pub suite: Suite,
    /// Lane that a connector dials; an acceptor answers on the lane that it is dialled on.
    pub lane: u8,
    /// Bulk lanes of a ring link.
    pub lanes: u8,
    /// The own rank.
    pub rank: u32,
    /// Stages of the ring.
    pub world: u32,
    /// Option bits.
    pub options: u32,
    /// Largest payload that this end takes.
    pub payload_max: u64,
    /// Largest payload that this end may have to send; the peer must take it.
    pub payload_need: u64,
    /// Launch id; [`LAUNCH_UNKNOWN`] on a follower that learns it from the lead.
    pub launch_id: [u8; 16],
    /// The own fingerprint.
    pub fingerprint: Fingerprint,
}

impl Settings {
    /// Psk, the row lane, one bulk lane, checksums on, payloads up to 1 GiB, launch unknown.
    #[must_use]
    pub fn new(rank: u32, world: u32, fingerprint: Fingerprint) -> Self {
        Self {
            suite: Suite::Psk,
            lane: 0,
            lanes: 1,
            rank,
            world,
            options: 0,
            payload_max: u64::from(limits::PAYLOAD_BYTES_MAX),
            payload_need: 0,
            launch_id: LAUNCH_UNKNOWN,
            fingerprint,
        }
    }

    /// The own identity block for a peer.
    #[must_use]
    pub fn identity(&self, role: Role, link: Link, peer_rank: u32, nonce: [u8; 32]) -> Identity {
        Identity {
            protocol: PROTOCOL,
            suite: self.suite.number(),
            role,
            link,
            lane: self.lane,
            lanes: self.lanes,
            rank: self.rank,
            peer_rank,
            world: self.world,
            options: self.options,
            payload_max: self.payload_max,
            launch_id: self.launch_id,
            nonce,
            fingerprint: *self.fingerprint.digest(),
        }
    }

    /// Checks protocol to lanes and world, in the order of section 4.1; `lane` is the one that it
    /// must be, where only one is due.
    pub(crate) fn check_ring(
        &self,
        peer: &Identity,
        link: Option<Link>,
        lane: Option<u8>,
    ) -> Result<(), ProtocolError> {
        if peer.protocol != PROTOCOL {
            return Err(Refusal::Protocol.numbers("protocol", PROTOCOL, peer.protocol));
        }
        if peer.suite != self.suite.number() {
            let own = self.suite;
            return Err(Suite::from_number(peer.suite).map_or_else(
                || Refusal::Suite.numbers("suite", own.number(), peer.suite),
                |its| Refusal::Suite.named(own.name(), its.name()),
            ));
        }
        if peer.options != self.options {
            return Err(Refusal::Options.numbers("options", self.options, peer.options));
        }
        if link.is_some_and(|link| link != peer.link) {
            return Err(Refusal::BadLink.error("expected another link on this connection"));
        }
        // Bulk lanes are numbered behind the row lane; a control link has no other than it.
        let last = match peer.link {
            Link::Ring => self.lanes,
            Link::Control => 0,
        };
        if peer.lane > last {
            return Err(Refusal::Lane.outside("lane", 0_u8, last, peer.lane));
        }
        if let Some(lane) = lane.filter(|&lane| lane != peer.lane) {
            return Err(Refusal::Lane.numbers("lane", lane, peer.lane));
        }
        if peer.lanes != self.lanes {
            return Err(Refusal::Lanes.numbers("lanes", self.lanes, peer.lanes));
        }
        if peer.world != self.world {
            return Err(Refusal::World.numbers("world", self.world, peer.world));
        }
        Ok(())
    }

    /// Checks the payload cap and the fingerprint, the last two of section 4.1.
    pub(crate) fn check_capacity(&self, peer: &Identity) -> Result<(), ProtocolError> {
        if peer.payload_max < self.payload_need {
            let (need, got) = (self.payload_need, peer.payload_max);
            return Err(Refusal::PayloadCap.outside("payload_max", need, u64::MAX, got));
        }
        if &peer.fingerprint != self.fingerprint.digest() {
            return Err(Refusal::Fingerprint.error("expected the own fingerprint"));
        }
        Ok(())
    }
}
