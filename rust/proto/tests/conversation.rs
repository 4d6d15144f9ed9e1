//! The state table of each end, and that both ends of a link keep the same one.
//! Single steps have vectors.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use stagelink_proto::{
    Refusal,
    conversation::{Conversation, LinkEnd, LinkState},
    frame::{Header, Kind},
};

fn header(kind: Kind, sequence: u64) -> Header {
    Header {
        kind,
        payload_bytes: 0,
        count: 0,
        sequence,
        checksummed: true,
        payload_checksum: 0,
    }
}

/// Both ends of one link.
struct Pair(Conversation, Conversation);

impl Pair {
    fn control() -> Self {
        Self(
            Conversation::new(LinkEnd::LeadControl),
            Conversation::new(LinkEnd::FollowerControl),
        )
    }

    fn ring(tokens: bool) -> Self {
        let acceptor = Conversation::new(LinkEnd::RingAcceptor { tokens });
        Self(
            acceptor,
            Conversation::new(LinkEnd::RingConnector { tokens }),
        )
    }

    /// The first end sends; the second must take it.
    fn there(&mut self, kind: Kind, round: Option<u64>) {
        let sequence = self.0.send(kind, round).unwrap();
        self.1.receive(&header(kind, sequence)).unwrap();
    }

    /// The second end sends; the first must take it.
    fn back(&mut self, kind: Kind, round: Option<u64>) {
        let sequence = self.1.send(kind, round).unwrap();
        self.0.receive(&header(kind, sequence)).unwrap();
    }

    fn open() -> Self {
        let mut pair = Self::control();
        pair.there(Kind::Progress, None);
        pair.back(Kind::Describe, None);
        pair.there(Kind::Roster, None);
        pair.back(Kind::Progress, None);
        pair.back(Kind::Ready, None);
        pair.there(Kind::Progress, None);
        pair.there(Kind::Open, None);
        pair.0.opened(7);
        pair.1.opened(7);
        pair
    }
}

#[test]
fn a_control_link_goes_from_describe_to_bye() {
    let mut pair = Pair::open();
    pair.there(Kind::Plan, Some(7));
    pair.back(Kind::Progress, None);
    pair.there(Kind::Cancel, None);
    pair.there(Kind::Plan, Some(8));
    pair.there(Kind::Bye, None);
    pair.back(Kind::Bye, None);
    assert_eq!(pair.0.state(), LinkState::Closing);
    assert_eq!(pair.1.state(), LinkState::Closing);
}

#[test]
fn a_ring_link_carries_rows_one_way_and_credits_the_other() {
    let mut pair = Pair::ring(false);
    pair.back(Kind::Rows, Some(3));
    pair.there(Kind::Credit, None);
    pair.back(Kind::Rows, Some(9));
    pair.there(Kind::Bye, None);
    pair.back(Kind::Bye, None);
}

#[test]
fn a_chain_carries_tokens_on_its_last_link() {
    let mut pair = Pair::ring(true);
    pair.back(Kind::Tokens, Some(3));
    assert_eq!(
        pair.1.send(Kind::Rows, Some(4)).unwrap_err().refusal,
        Refusal::Local
    );
    assert!(pair.0.takes_tokens());
}

#[test]
fn what_a_peer_would_refuse_is_refused_before_it_leaves() {
    let ends = [
        LinkEnd::LeadControl,
        LinkEnd::FollowerControl,
        LinkEnd::RingAcceptor { tokens: false },
        LinkEnd::RingConnector { tokens: false },
    ];
    let opposite = [1, 0, 3, 2];
    for (end, other) in ends.iter().zip(opposite.map(|index| ends[index])) {
        for &kind in Kind::ALL {
            let sent = Conversation::new(*end).send(kind, Some(1));
            let taken = Conversation::new(other).receive(&header(kind, sent.clone().unwrap_or(2)));
            if sent.is_ok() {
                assert_eq!(taken, Ok(()), "{end:?} sends {}", kind.name());
            }
        }
    }
}

#[test]
fn rounds_of_plans_have_no_gap() {
    let mut pair = Pair::open();
    assert_eq!(
        pair.0.send(Kind::Plan, Some(8)).unwrap_err().refusal,
        Refusal::BadSequence
    );
    pair.there(Kind::Plan, Some(7));
    let twice = pair.1.receive(&header(Kind::Plan, 7)).unwrap_err();
    assert_eq!(twice.refusal, Refusal::BadSequence);
    pair.there(Kind::Plan, Some(8));
}

#[test]
fn own_rows_ascend() {
    let mut pair = Pair::ring(false);
    pair.back(Kind::Rows, Some(3));
    assert_eq!(
        pair.1.send(Kind::Rows, Some(3)).unwrap_err().refusal,
        Refusal::RowsRound
    );
}

#[test]
fn a_refused_frame_changes_nothing() {
    let mut pair = Pair::open();
    let state = pair.1.state();
    assert_eq!(
        pair.1
            .receive(&header(Kind::Credit, 6))
            .unwrap_err()
            .refusal,
        Refusal::UnexpectedKind
    );
    assert_eq!(pair.1.state(), state);
    pair.there(Kind::Cancel, None);
}

#[test]
fn nothing_but_a_fate_follows_a_bye() {
    let mut pair = Pair::open();
    pair.there(Kind::Bye, None);
    assert_eq!(
        pair.0.send(Kind::Cancel, None).unwrap_err().refusal,
        Refusal::Local
    );
    pair.there(Kind::Fate, None);
    assert_eq!(pair.1.state(), LinkState::Ended);
    assert_eq!(
        pair.1.receive(&header(Kind::Fate, 8)).unwrap_err().refusal,
        Refusal::UnexpectedKind
    );
}
