//! Any frame's payload as a value: for tools, tests and vectors that meet every kind.
//! A running ring parses each kind where it expects it, with its own knowledge.

use alloc::vec::Vec;

use crate::{
    bytes::Reader,
    cancel::Cancel,
    describe::{Description, OPS_ALL},
    error::ProtocolError,
    fate::Fate,
    figures::Figures,
    frame::{Header, Kind},
    hello::{Identity, Role},
    limits::{IDENTITY_BYTES, REFUSED_PROVED_BYTES},
    open::Open,
    plan::{Plan, PlanBounds},
    progress::Progress,
    ready::Ready,
    refused::Refused,
    roster::Roster,
};

/// What the reader of a payload knows of its link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Surroundings {
    /// Rank at the sending end.
    pub rank: u32,
    /// Stages of the ring.
    pub world: u32,
    /// Layers of the model.
    pub layers: u32,
    /// What a plan may hold.
    pub plan_bounds: PlanBounds,
}

impl Default for Surroundings {
    fn default() -> Self {
        let plan_bounds = PlanBounds {
            ops: OPS_ALL,
            ..PlanBounds::default()
        };
        Self {
            rank: 1,
            world: 3,
            layers: 30,
            plan_bounds,
        }
    }
}

/// A payload, by its kind.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// The connector's identity.
    Hello(Identity),
    /// The acceptor's nonce.
    Challenge([u8; 32]),
    /// The connector's MAC.
    Proof([u8; 32]),
    /// The acceptor's identity and MAC.
    Welcome(Identity, [u8; 32]),
    /// The acceptor's refusal and MAC.
    Refused(Refused, [u8; 32]),
    /// What a follower is.
    Describe(alloc::boxed::Box<Description>),
    /// A follower is loaded and warm.
    Ready(Ready),
    /// What one round does.
    Plan(Plan),
    /// Rows, opaque here; the header has their count.
    Rows,
    /// Credits; the header has their count.
    Credit,
    /// What an engine does.
    Progress(Progress),
    /// The ring ends.
    Fate(Fate),
    /// The orderly end.
    Bye,
    /// Every rank's place.
    Roster(Roster),
    /// The ring runs.
    Open(Open),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Advice about a stream.
    Cancel(Cancel),
    /// What a follower's loop came to.
    Figures(Figures),
}

impl Message {
    /// Reads the payload of a frame whose header and checksum were checked.
    pub fn parse(
        header: &Header,
        payload: &[u8],
        around: &Surroundings,
    ) -> Result<Self, ProtocolError> {
        let Surroundings {
            rank,
            world,
            layers,
            plan_bounds,
        } = around;
        let mut fields = Reader::new(payload);
        Ok(match header.kind {
            Kind::Hello => {
                let block = fields.array::<IDENTITY_BYTES>()?;
                Self::Hello(Identity::parse(&block, Role::Connector)?)
            }
            Kind::Challenge => Self::Challenge(fields.array()?),
            Kind::Proof => Self::Proof(fields.array()?),
            Kind::Welcome => {
                let block = fields.array::<IDENTITY_BYTES>()?;
                Self::Welcome(Identity::parse(&block, Role::Acceptor)?, fields.array()?)
            }
            Kind::Refused => {
                let proved = fields.array::<REFUSED_PROVED_BYTES>()?;
                Self::Refused(Refused::parse(&proved)?, fields.array()?)
            }
            Kind::Describe => {
                let description = Description::parse_of(payload, *rank, *world)?;
                Self::Describe(alloc::boxed::Box::new(description))
            }
            Kind::Ready => Self::Ready(Ready::parse(payload, *rank)?),
            Kind::Plan => Self::Plan(Plan::parse(payload, plan_bounds)?),
            Kind::Rows => Self::Rows,
            Kind::Credit => Self::Credit,
            Kind::Progress => Self::Progress(Progress::parse(payload, *rank)?),
            Kind::Fate => Self::Fate(Fate::parse(payload, *world)?),
            Kind::Bye => Self::Bye,
            Kind::Roster => Self::Roster(Roster::parse(payload, *world, *layers)?),
            Kind::Open => Self::Open(Open::parse(payload)?),
            Kind::Tokens => {
                let mut tokens = Vec::with_capacity(payload.len().div_ceil(4));
                for _ in 0..header.count {
                    tokens.push(fields.u32()?);
                }
                Self::Tokens(tokens)
            }
            Kind::Cancel => Self::Cancel(Cancel::parse(payload)?),
            Kind::Figures => Self::Figures(Figures::parse(payload, *rank)?),
        })
    }
}
