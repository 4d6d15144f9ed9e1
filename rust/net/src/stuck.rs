//! Rows that one rank has sent and the next one does not get: a boundary link that stands, carries
//! nothing and says nothing, as behind a half-open connection.
//!
//! The lead judges it from what every rank tells of itself; no link is looked at here.

use std::time::Duration;

use stagelink_proto::progress::Phase;

/// What a rank was last heard to do, and since when it does just that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) phase: Phase,
    pub(crate) round: u64,
    pub(crate) since: Duration,
}

/// Rows of a round that do not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) round: u64,
    pub(crate) limit: Duration,
}

/// The first boundary whose rows are overdue, in rank order.
///
/// `limit` is how long the rows of a round may be under way: what the receiver itself would give
/// them from their first byte on (docs/protocol.md 8).
pub(crate) fn stuck(
    world: u32,
    now: Duration,
    seen: impl Fn(u32) -> Option<Seen>,
    limit: impl Fn(u64) -> Duration,
) -> Option<Stuck> {
    (0..world).find_map(|from| {
        let to = (from + 1) % world;
        let (sender, receiver) = (seen(from)?, seen(to)?);
        let round = receiver.round;
        if receiver.phase != Phase::Receiving || round == 0 {
            return None;
        }
        let limit = limit(round);
        let is_overdue = |one: Seen| now.saturating_sub(one.since) > limit;
        let is_stuck = has_sent(from, sender, round) && is_overdue(sender) && is_overdue(receiver);
        is_stuck.then_some(Stuck {
            from,
            to,
            round,
            limit,
        })
    })
}

/// Whether a rank is past computing a round, as far as its link to the next rank matters.
fn has_sent(rank: u32, doing: Seen, round: u64) -> bool {
    match doing.phase {
        // Rank 0 waits for what comes back of a round only when it has sent it; a follower waits
        // for a round's rows before it can send them.
        Phase::Receiving if rank == 0 => doing.round >= round,
        Phase::Receiving | Phase::Computing => doing.round > round,
        Phase::Sending => doing.round >= round,
        // A follower that waits for a plan has sent all that it was asked for.
        Phase::Idle => rank != 0,
        Phase::Booting | Phase::Loading | Phase::Warming => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Judge three ranks, each of which has done the same since time 0.
    fn judge(at: u64, ranks: [(Phase, u64); 3]) -> Option<(u32, u32)> {
        let seen = |rank: u32| {
            let (phase, round) = ranks[rank as usize];
            let since = Duration::ZERO;
            Some(Seen {
                phase,
                round,
                since,
            })
        };
        let found = stuck(3, Duration::from_secs(at), seen, |_| LIMIT);
        found.map(|found| (found.from, found.to))
    }

    #[test]
    fn rows_that_do_not_arrive_are_found_on_every_boundary() {
        use Phase::{Idle, Receiving, Sending};
        let first = [(Receiving, 7), (Receiving, 7), (Receiving, 7)];
        assert_eq!(judge(6, first), Some((0, 1)));
        let second = [(Receiving, 7), (Idle, 0), (Receiving, 7)];
        assert_eq!(judge(6, second), Some((1, 2)));
        let back = [(Receiving, 7), (Idle, 7), (Idle, 0)];
        assert_eq!(judge(6, back), Some((2, 0)));
        let half_sent = [(Receiving, 7), (Sending, 7), (Receiving, 7)];
        assert_eq!(judge(6, half_sent), Some((1, 2)));
        assert_eq!(judge(5, half_sent), None);
    }

    #[test]
    fn who_waits_for_a_rank_that_computes_is_not_stuck() {
        use Phase::{Computing, Idle, Receiving};
        let slow_lead = [(Computing, 7), (Receiving, 7), (Receiving, 7)];
        assert_eq!(judge(600, slow_lead), None);
        let slow_follower = [(Receiving, 7), (Computing, 7), (Receiving, 7)];
        assert_eq!(judge(600, slow_follower), None);
        let at_rest = [(Idle, 0), (Idle, 0), (Idle, 0)];
        assert_eq!(judge(600, at_rest), None);
        let not_begun = [(Idle, 7), (Receiving, 8), (Idle, 7)];
        assert_eq!(judge(600, not_begun), None);
    }

    #[test]
    fn a_rank_that_is_not_known_yet_is_not_judged() {
        let none = |_| None;
        assert_eq!(stuck(3, Duration::MAX, none, |_| LIMIT), None);
    }
}
