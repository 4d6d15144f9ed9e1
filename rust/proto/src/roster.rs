//! The roster: every rank's layers, address and host, from the lead (docs/protocol.md 6.2).
//! It dials nobody.

use alloc::{string::String, vec::Vec};

use crate::{
    bytes::{Put as _, Reader, check_text, to_u32, to_usize},
    describe::{Description, check_address, check_port, check_text_bytes},
    error::{ProtocolError, Refusal},
    layout::check_ranges,
    limits,
};

/// One rank's place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// First layer held.
    pub first: u32,
    /// One past the last layer held.
    pub end: u32,
    /// Port of its boundary link.
    pub port: u16,
    /// Literal address of its boundary link.
    pub address: String,
    /// The machine's name; may be empty.
    pub host: String,
}

/// All ranks' places; a member's index is its rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Roster {
    members: Vec<Member>,
}

impl Roster {
    /// The roster of descriptions that are in rank order.
    pub fn of_descriptions<'a>(
        descriptions: impl IntoIterator<Item = &'a Description>,
    ) -> Result<Self, ProtocolError> {
        let members = descriptions.into_iter().map(|it| Member {
            first: it.first,
            end: it.end,
            port: it.port,
            address: it.address.clone(),
            host: it.host.clone(),
        });
        Self::new(members.collect())
    }

    /// A roster of members in rank order. Errors: as [`Self::parse`], but for the layers.
    pub fn new(members: Vec<Member>) -> Result<Self, ProtocolError> {
        let world = to_u32(members.len(), "roster entries")?;
        if !(limits::WORLD_MIN..=limits::WORLD_MAX).contains(&world) {
            let (least, most) = (limits::WORLD_MIN, limits::WORLD_MAX);
            return Err(Refusal::BadLimit.outside("roster entries", least, most, world));
        }
        for (member, rank) in members.iter().zip(0_u32..) {
            check_member(member).map_err(|error| error.of_rank(rank))?;
        }
        Ok(Self { members })
    }

    /// Reads a roster of `world` ranks whose ranges cover `layers`.
    ///
    /// Errors: the rules of section 6.2 and the ranges of 6.1.1.
    pub fn parse(payload: &[u8], world: u32, layers: u32) -> Result<Self, ProtocolError> {
        let mut fields = Reader::new(payload);
        let count = fields.u32()?;
        if count != world {
            return Err(Refusal::BadLimit.numbers("roster entries", world, count));
        }
        fields.reserved(4)?;
        let mut members = Vec::with_capacity(to_usize(world.min(limits::WORLD_MAX)));
        for rank in 0..count {
            members.push(parse_member(&mut fields, rank)?);
        }
        fields.finish()?;
        let roster = Self { members };
        roster.check_layers(layers)?;
        Ok(roster)
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), ProtocolError> {
        out.u32(self.world());
        out.u32(0);
        for (member, rank) in self.members.iter().zip(0_u32..) {
            out.u32(rank);
            out.u32(member.first);
            out.u32(member.end);
            out.u16(member.port);
            out.u8(u8::try_from(member.address.len()).unwrap_or(0));
            out.u8(u8::try_from(member.host.len()).unwrap_or(0));
            out.bytes(member.address.as_bytes());
            out.bytes(member.host.as_bytes());
        }
        Ok(())
    }

    /// All members in rank order.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of a rank, if there is one.
    #[must_use]
    pub fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(to_usize(rank))
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(limits::WORLD_MAX)
    }

    /// Checks that the members cover `0..layers` exactly once, as every follower does.
    pub fn check_layers(&self, layers: u32) -> Result<(), ProtocolError> {
        let ranges = self.members.iter().zip(0_u32..);
        check_ranges(
            ranges.map(|(member, rank)| (rank, member.first, member.end)),
            layers,
        )
    }
}

fn parse_member(fields: &mut Reader<'_>, expected: u32) -> Result<Member, ProtocolError> {
    let rank = fields.u32()?;
    if rank != expected {
        return Err(Refusal::BadLimit.numbers("rank of a roster entry", expected, rank));
    }
    let (first, end, port) = (fields.u32()?, fields.u32()?, fields.u16()?);
    let (address_bytes, host_bytes) = (fields.u8()?, fields.u8()?);
    let address = fields.take(usize::from(address_bytes))?;
    let address = core::str::from_utf8(address).map_err(|_| {
        Refusal::BadAddress
            .error("expected a literal address")
            .of_rank(rank)
    })?;
    let host = fields.take(usize::from(host_bytes))?;
    check_place(first, end, port, address).map_err(|error| error.of_rank(rank))?;
    let host = Reader::new(host)
        .text(host.len())
        .map_err(|error| error.of_rank(rank))?;
    Ok(Member {
        first,
        end,
        port,
        address: address.into(),
        host: host.into(),
    })
}

fn check_member(member: &Member) -> Result<(), ProtocolError> {
    check_place(member.first, member.end, member.port, &member.address)?;
    check_text_bytes(&member.host)?;
    check_text(&member.host)
}

fn check_place(first: u32, end: u32, port: u16, address: &str) -> Result<(), ProtocolError> {
    if first >= end {
        let most = end.saturating_sub(1);
        return Err(Refusal::RangeEmpty.outside("first layer", 0_u32, most, first));
    }
    check_port(port)?;
    check_address(address)
}
