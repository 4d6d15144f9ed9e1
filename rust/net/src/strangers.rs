//! Who came to the listener and was not let in, counted for the text of a boot that fails.
//!
//! It closes nothing.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;

/// Source addresses whose failures are counted one by one; the rest are counted together.
const SOURCES_MAX: usize = 16;
/// So many failures of one source within this time, and it is answered late.
const OFTEN: (u32, Duration) = (3, Duration::from_secs(10));

/// Connections that failed before or at the proof, by source address.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    failed_proof: Vec<(IpAddr, u32)>,
    failed_proof_elsewhere: u32,
    other: u32,
    turned_away: Vec<(u32, Refusal)>,
    recent: Vec<Recent>,
}

/// The failures of one source since it began to fail.
#[derive(Clone, Copy, Debug)]
struct Recent {
    source: IpAddr,
    since: Instant,
    failures: u32,
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
        self.note(source, Instant::now());
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

    /// Whether a source has failed again and again just now.
    pub(crate) fn failed_often(&self, source: Option<SocketAddr>) -> bool {
        self.failed_often_at(source, Instant::now())
    }

    fn failed_often_at(&self, source: Option<SocketAddr>, now: Instant) -> bool {
        let (failures, within) = OFTEN;
        self.recent.iter().any(|one| {
            Some(one.source) == source.map(|source| source.ip())
                && one.failures >= failures
                && now.saturating_duration_since(one.since) < within
        })
    }

    /// Remember a failure; of more sources than are kept, the one that began first is forgotten.
    fn note(&mut self, source: Option<SocketAddr>, now: Instant) {
        let Some(source) = source.map(|source| source.ip()) else {
            return;
        };
        let is_old = |one: &Recent| now.saturating_duration_since(one.since) >= OFTEN.1;
        self.recent.retain(|one| !is_old(one));
        if let Some(one) = self.recent.iter_mut().find(|one| one.source == source) {
            one.failures = one.failures.saturating_add(1);
            return;
        }
        if self.recent.len() == SOURCES_MAX {
            self.recent.remove(0);
        }
        self.recent.push(Recent {
            source,
            since: now,
            failures: 1,
        });
    }

    /// `3 connections failed the key proof from 127.0.0.1; ...`, once for all; or nothing.
    pub(crate) fn told(&self) -> String {
        self.summary().trim_start_matches("; ").to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 7000))
    }

    #[test]
    fn a_source_that_fails_three_times_in_ten_seconds_has_failed_often_until_they_are_over() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        for second in 0..3 {
            assert!(!strangers.failed_often_at(Some(host(1)), start));
            strangers.note(Some(host(1)), start + Duration::from_secs(second));
        }
        assert!(strangers.failed_often_at(Some(host(1)), start + Duration::from_secs(9)));
        assert!(!strangers.failed_often_at(Some(host(2)), start));
        assert!(!strangers.failed_often_at(Some(host(1)), start + Duration::from_secs(10)));
        strangers.note(Some(host(1)), start + Duration::from_secs(11));
        assert!(!strangers.failed_often_at(Some(host(1)), start + Duration::from_secs(11)));
    }

    #[test]
    fn strangers_are_told_once_with_their_count() {
        let mut strangers = Strangers::default();
        assert_eq!(strangers.told(), "");
        for last in [1, 2, 2] {
            strangers.count(Some(host(last)), &Refusal::Key.error("another key"));
        }
        strangers.count(Some(host(3)), &Refusal::BadMagic.error("no frame"));
        let told = strangers.told();
        assert_eq!(
            told,
            "3 connections failed the key proof from 10.0.0.1, 10.0.0.2; \
             1 connection did not speak the protocol"
        );
    }

    #[test]
    fn sources_without_an_end_take_no_memory_without_an_end() {
        let (mut strangers, start) = (Strangers::default(), Instant::now());
        for last in 0..=255 {
            strangers.note(Some(host(last)), start);
        }
        assert_eq!(strangers.recent.len(), SOURCES_MAX);
    }
}
