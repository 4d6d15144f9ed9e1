//! Who came to the listener and was not let in, counted for the text of a boot that fails.
//!
//! It closes nothing.

use std::net::{IpAddr, SocketAddr};

use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;

/// Source addresses whose failures are counted one by one; the rest are counted together.
const SOURCES_MAX: usize = 16;

/// Connections that failed before or at the proof, by source address.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    failed_proof: Vec<(IpAddr, u32)>,
    failed_proof_elsewhere: u32,
    other: u32,
    turned_away: Vec<(u32, Refusal)>,
}

impl Strangers {
    /// Note a holder of the key that was turned away alone, for the deadline's text.
    pub(crate) fn turned_away(&mut self, rank: u32, error: &ProtocolError) {
        if self.turned_away.len() < SOURCES_MAX {
            self.turned_away.push((rank, error.refusal));
        }
    }

    /// Count a connection that was closed without a word.
    pub(crate) fn count(&mut self, source: Option<SocketAddr>, error: &ProtocolError) {
        if error.refusal != Refusal::Key {
            self.other += 1;
            return;
        }
        let Some(ip) = source.map(|source| source.ip()) else {
            self.failed_proof_elsewhere += 1;
            return;
        };
        if let Some((_, count)) = self.failed_proof.iter_mut().find(|(known, _)| *known == ip) {
            *count += 1;
        } else if self.failed_proof.len() < SOURCES_MAX {
            self.failed_proof.push((ip, 1));
        } else {
            self.failed_proof_elsewhere += 1;
        }
    }

    /// `; 3 connections failed the key proof from 127.0.0.1`, or nothing.
    pub(crate) fn summary(&self) -> String {
        let mut parts = Vec::new();
        let total: u32 = self.failed_proof.iter().map(|(_, count)| count).sum();
        let total = total + self.failed_proof_elsewhere;
        if total > 0 {
            let from: Vec<String> = self
                .failed_proof
                .iter()
                .take(4)
                .map(|(ip, _)| ip.to_string())
                .collect();
            let (plural, from) = (plural(total), from.join(", "));
            parts.push(format!(
                "{total} connection{plural} failed the key proof from {from}"
            ));
        }
        if self.other > 0 {
            let (count, plural) = (self.other, plural(self.other));
            parts.push(format!(
                "{count} connection{plural} did not speak the protocol"
            ));
        }
        for (rank, refusal) in &self.turned_away {
            parts.push(format!("a rank {rank} was turned away: {refusal}"));
        }
        parts.iter().map(|part| ["; ", part].concat()).collect()
    }
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}
