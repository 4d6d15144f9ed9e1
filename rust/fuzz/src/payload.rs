//! A payload of any kind: the kind's number, a count, then the payload.
//!
//! What is accepted is byte for byte what would be sent for it.

use stagelink_proto::frame::{Header, Kind};
use stagelink_proto::hello::Identity;
use stagelink_proto::message::{Message, Surroundings};
use stagelink_proto::plan::Plan;

use crate::source::Source;

/// # Panics
///
/// Where a rule does not hold.
pub fn judge(input: &[u8]) {
    let mut source = Source::new(input);
    let Some(kind) = Kind::from_number(source.u8()) else {
        return;
    };
    let count = source.u8();
    let payload = source.rest();
    let Ok(header) = Header::for_payload(kind, 2, count.into(), payload, true) else {
        return;
    };
    if let Ok(message) = Message::parse(&header, payload, &Surroundings::default()) {
        check(&message, payload);
    }
}

/// Compares a message with the bytes that it was read from.
pub(crate) fn check(message: &Message, payload: &[u8]) {
    let mut out = Vec::new();
    match message {
        Message::Hello(identity) => out.extend(identity.encode()),
        Message::Challenge(bytes) | Message::Proof(bytes) => out.extend(bytes),
        Message::Welcome(identity, mac) => out.extend(identity_and(identity, mac)),
        Message::Refused(refused, mac) => {
            out.extend(refused.encode());
            out.extend(mac);
        }
        Message::Describe(description) => {
            description
                .check()
                .expect("a description that was read is legal");
            description.encode(&mut out).expect("and can be sent");
        }
        Message::Ready(ready) => out.extend(ready.encode()),
        Message::Plan(plan) => {
            check_plan(plan);
            plan.encode(&mut out);
        }
        Message::Progress(progress) => out.extend(progress.encode()),
        Message::Fate(fate) => fate.encode(&mut out),
        Message::Roster(roster) => roster.encode(&mut out).expect("a roster can be sent"),
        Message::Open(open) => out.extend(open.encode()),
        Message::Tokens(tokens) => out.extend(tokens.iter().flat_map(|id| id.to_le_bytes())),
        Message::Cancel(cancel) => out.extend(cancel.encode()),
        Message::Figures(figures) => out.extend(figures.encode()),
        Message::Rows | Message::Credit | Message::Bye => return,
    }
    assert!(out == payload, "a message has one form: {message:?}");
}

/// What a plan says of its rows agrees with its entries.
pub(crate) fn check_plan(plan: &Plan) {
    let rows: u64 = plan
        .entries()
        .iter()
        .map(|entry| u64::from(entry.rows))
        .sum();
    assert_eq!(rows, u64::from(plan.rows()));
    let (mut count, mut last) = (0_u32, None);
    for offset in plan.returned_offsets() {
        assert!(offset < plan.rows() && last.is_none_or(|before| before < offset));
        (count, last) = (count + 1, Some(offset));
    }
    assert_eq!(count, plan.rows_returned());
    assert_eq!(plan.is_keep_alive(), plan.entries().is_empty());
    assert!(plan.entries().windows(2).all(|two| two[0].id < two[1].id));
    assert!(plan.cuts().windows(2).all(|two| two[0] < two[1]));
    assert!(plan.cuts().iter().all(|&cut| 0 < cut && cut < plan.rows()));
}

fn identity_and(identity: &Identity, mac: &[u8; 32]) -> Vec<u8> {
    [&identity.encode()[..], mac].concat()
}
