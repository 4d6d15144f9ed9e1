//! Who is on the ring: each rank's range, machine and address, for texts and for dialling.
//!
//! It is filled at boot and never changes afterwards.

use std::net::SocketAddr;

use stagelink_proto::describe::KvDtype;

/// One rank, as its description and the roster tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Member {
    /// Its rank.
    pub rank: u32,
    /// First layer.
    pub first: u32,
    /// One past the last layer.
    pub end: u32,
    /// The machine's name, for people; may be empty.
    pub host: String,
    /// Where it listened at boot.
    pub address: Option<SocketAddr>,
    /// What computes; known to rank 0 only.
    pub backend: String,
    /// The device's name; known to rank 0 only.
    pub device: String,
    /// Process id; known to rank 0 only.
    pub process: u32,
    /// Bytes that the own tensors take; known to rank 0 only.
    pub weight_bytes: u64,
    /// Element type of the KV; known to rank 0 only.
    pub kv_dtype: Option<KvDtype>,
    /// Batch invariance was asked for and is promised; known to rank 0 only.
    pub batch_invariant: bool,
    /// It can cut a stream's state back; known to rank 0 only.
    pub keep: bool,
}

/// All ranks that are known so far.
#[derive(Clone, Debug, Default)]
pub struct Members {
    all: Vec<Member>,
}

impl Members {
    /// In rank order.
    #[must_use]
    pub fn all(&self) -> &[Member] {
        &self.all
    }

    /// One rank, if it is known.
    #[must_use]
    pub fn get(&self, rank: u32) -> Option<&Member> {
        self.all.iter().find(|member| member.rank == rank)
    }

    /// Add or replace one rank.
    pub(crate) fn put(&mut self, member: Member) {
        self.all.retain(|other| other.rank != member.rank);
        self.all.push(member);
        self.all.sort_by_key(|member| member.rank);
    }

    /// `rank 2 (macstudio 10.0.0.3:7001, layers 20..30)`, as far as it is known.
    #[must_use]
    pub fn name(&self, rank: u32) -> String {
        let Some(member) = self.get(rank) else {
            return format!("rank {rank}");
        };
        let mut facts = Vec::new();
        match (member.host.as_str(), member.address) {
            ("", None) => {}
            ("", Some(address)) => facts.push(address.to_string()),
            (host, None) => facts.push(host.to_owned()),
            (host, Some(address)) => facts.push(format!("{host} {address}")),
        }
        if member.end > member.first {
            facts.push(format!("layers {}..{}", member.first, member.end));
        }
        if facts.is_empty() {
            return format!("rank {rank}");
        }
        format!("rank {rank} ({})", facts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_named_with_all_that_is_known_of_it() {
        let mut members = Members::default();
        assert_eq!(members.name(2), "rank 2");
        let address = "10.0.0.3:7001".parse().ok();
        members.put(Member {
            rank: 2,
            address,
            ..Member::default()
        });
        assert_eq!(members.name(2), "rank 2 (10.0.0.3:7001)");
        let host = "macstudio".to_owned();
        members.put(Member {
            rank: 2,
            first: 20,
            end: 30,
            host,
            address,
            ..Member::default()
        });
        assert_eq!(
            members.name(2),
            "rank 2 (macstudio 10.0.0.3:7001, layers 20..30)"
        );
    }
}
