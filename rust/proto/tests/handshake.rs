//! What each end reports after a handshake that fails, and what it still has to say.
//! The bytes of both ends have vectors.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use stagelink_proto::{
    Refusal,
    fingerprint::{FIELDS, Fingerprint},
    handshake::{Acceptor, Connector, Decision, Linked, Links, NotLinked, Stranger},
    hello::{LAUNCH_UNKNOWN, Link, Settings},
    proof::Secret,
};

const LAUNCH: [u8; 16] = [9; 16];

fn fingerprint(change: Option<usize>) -> Fingerprint {
    let mut fields = [[1; 32]; 8];
    if let Some(which) = change {
        fields[which] = [2; 32];
    }
    Fingerprint::new(fields)
}

fn settings(rank: u32) -> Settings {
    Settings {
        launch_id: LAUNCH,
        ..Settings::new(rank, 3, fingerprint(None))
    }
}

/// How one end's settings are changed.
type Change = fn(&mut Settings);

/// How a handshake ended at the acceptor, then at the connector.
type Ends = (Result<Linked, Refusal>, Result<Linked, NotLinked>);

/// A follower dials the lead's control link; the closures change each end's settings.
fn dial(
    connector: impl FnOnce(&mut Settings),
    acceptor: impl FnOnce(&mut Settings),
    is_free: bool,
) -> Ends {
    let (mut own, mut lead) = (settings(1), settings(0));
    connector(&mut own);
    acceptor(&mut lead);
    let secret = Secret::from_key(&[4; 32]);
    let connector = Connector::new(secret.clone(), own, Link::Control, 0);
    let acceptor = Acceptor::new(secret, lead, Links::Both);
    let (greeting, hello) = connector.start([1; 32]).unwrap();
    let (greeted, challenge) = acceptor.hello(&hello, [2; 32]).unwrap();
    let (proving, proof) = greeting.challenge(&challenge).unwrap();
    match greeted.proof(&proof).unwrap().decide(is_free).unwrap() {
        Decision::Welcome(linked, welcome) => (Ok(linked), proving.answer(&welcome)),
        Decision::Refuse(error, refused) => (Err(error.refusal), proving.answer(&refused)),
    }
}

#[test]
fn a_follower_learns_the_launch_from_the_lead() {
    let (lead, follower) = dial(|own| own.launch_id = LAUNCH_UNKNOWN, |_| {}, true);
    assert_eq!(lead.unwrap().launch_id, LAUNCH);
    let follower = follower.unwrap();
    assert_eq!((follower.launch_id, follower.peer.rank), (LAUNCH, 0));
}

#[test]
fn a_connector_names_the_field_that_differs_and_owes_a_fate() {
    for (which, (name, refusal)) in FIELDS.iter().enumerate() {
        let (lead, follower) = dial(
            |own| own.fingerprint = fingerprint(Some(which)),
            |_| {},
            true,
        );
        assert_eq!(lead.unwrap_err(), Refusal::Fingerprint, "{name}");
        let not_linked = follower.unwrap_err();
        assert_eq!(not_linked.error.refusal, *refusal, "{name}");
        assert!(not_linked.fate_due && not_linked.text.is_some(), "{name}");
    }
}

#[test]
fn any_other_refusal_is_reported_as_it_came_and_owes_nothing() {
    let cases: [(Refusal, Change); 5] = [
        (Refusal::World, |own| own.world = 4),
        (Refusal::Rank, |own| own.rank = 0),
        (Refusal::Options, |own| own.options = 1),
        (Refusal::Launch, |own| own.launch_id = [8; 16]),
        (Refusal::Lanes, |own| own.lanes = 2),
    ];
    for (refusal, change) in cases {
        let (lead, follower) = dial(change, |_| {}, true);
        assert_eq!(lead.unwrap_err(), refusal);
        let not_linked = follower.unwrap_err();
        assert_eq!(
            (not_linked.error.refusal, not_linked.fate_due),
            (refusal, false)
        );
    }
}

#[test]
fn a_taken_place_is_refused_by_name() {
    let (lead, follower) = dial(|_| {}, |_| {}, false);
    assert_eq!(lead.unwrap_err(), Refusal::RankTaken);
    assert_eq!(follower.unwrap_err().error.refusal, Refusal::RankTaken);
}

#[test]
fn a_connector_that_cannot_use_the_acceptor_tells_it_why() {
    let (lead, follower) = dial(
        |own| own.payload_need = 100,
        |lead| lead.payload_max = 99,
        true,
    );
    lead.unwrap();
    let not_linked = follower.unwrap_err();
    assert_eq!(
        (not_linked.error.refusal, not_linked.fate_due),
        (Refusal::PayloadCap, true)
    );
}

#[test]
fn an_acceptor_with_another_key_says_nothing_and_the_connector_reports_the_key() {
    let connector = Connector::new(Secret::from_key(&[4; 32]), settings(0), Link::Ring, 1);
    let acceptor = Acceptor::new(Secret::from_key(&[5; 32]), settings(1), Links::Ring);
    let (greeting, hello) = connector.start([1; 32]).unwrap();
    let (greeted, challenge) = acceptor.hello(&hello, [2; 32]).unwrap();
    let (proving, proof) = greeting.challenge(&challenge).unwrap();
    let Stranger(error) = greeted.proof(&proof).unwrap_err();
    assert!(error.refusal == Refusal::Key && error.refusal.is_for_strangers());
    let closed = proving.closed();
    assert_eq!(
        (closed.error.refusal, closed.fate_due),
        (Refusal::Key, false)
    );
}

#[test]
fn a_secret_does_not_print_itself() {
    assert_eq!(format!("{:?}", Secret::from_key(&[4; 32])), "Secret");
}
