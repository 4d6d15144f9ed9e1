//! What this side would send wrongly is refused here, with the code that the peer would answer.
//! What a peer sends wrongly has vectors.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

#[path = "support/descriptions.rs"]
mod descriptions;

use descriptions::description;
use stagelink_proto::{
    Refusal,
    describe::Description,
    fate::{Fate, FirstFate},
    frame::{Header, Kind},
    incoming::{Event, Incoming, Want},
    limits,
    open::Open,
    refused::Refused,
    roster::{Member, Roster},
};

/// How one description is broken.
type Change = fn(&mut Description);

#[test]
fn a_description_outside_its_limits_is_not_encoded() {
    let cases: [(&str, Refusal, Change); 22] = [
        ("world", Refusal::WorldDescription, |it| it.world = 65),
        ("rank", Refusal::RankDescription, |it| it.rank = it.world),
        ("range", Refusal::RangeEmpty, |it| it.first = it.end),
        ("layers", Refusal::BadLimit, |it| it.layers = 4_097),
        ("width", Refusal::BadLimit, |it| it.width = 0),
        ("planes", Refusal::BadLimit, |it| it.planes = 9),
        ("rows_max", Refusal::BadLimit, |it| it.rows_max = 65_537),
        ("chunk_rows", Refusal::BadLimit, |it| {
            it.chunk_rows = it.rows_max + 1;
        }),
        ("streams_max", Refusal::BadLimit, |it| {
            it.streams_max = 1_025;
        }),
        ("context", Refusal::BadLimit, |it| it.context = 0),
        ("draft_width", Refusal::BadLimit, |it| {
            it.draft_width = (1 << 20) + 1;
        }),
        ("buffers", Refusal::BadLimit, |it| it.buffers = 65),
        ("rounds", Refusal::BadLimit, |it| {
            it.rounds_in_flight_max = 0;
        }),
        ("ops", Refusal::BadLimit, |it| it.ops = 0b1_1100),
        ("blocks", Refusal::BadLimit, |it| it.blocks = 0b1_0001),
        ("port", Refusal::BadAddress, |it| it.port = 0),
        ("wildcard", Refusal::BadAddress, |it| {
            it.address = "::".into();
        }),
        ("mapped wildcard", Refusal::BadAddress, |it| {
            it.address = "::ffff:0.0.0.0".into();
        }),
        ("name", Refusal::BadAddress, |it| {
            it.address = "node1".into();
        }),
        ("backend", Refusal::BadText, |it| it.backend.clear()),
        ("host", Refusal::BadText, |it| it.host = "a\nb".into()),
        ("device", Refusal::BadText, |it| it.device = "d".repeat(256)),
    ];
    for (what, refusal, change) in cases {
        let mut it = description(1, 3);
        change(&mut it);
        let mut out = Vec::new();
        assert_eq!(it.encode(&mut out).unwrap_err().refusal, refusal, "{what}");
        assert!(out.is_empty(), "{what}: nothing was written");
    }
}

#[test]
fn tap_layers_are_few_ascending_and_inside_the_range() {
    let verdict = |end: u32, taps: Vec<u32>| {
        let it = Description {
            end,
            taps,
            ..description(0, 2)
        };
        it.check().map_err(|error| error.refusal)
    };
    assert_eq!(verdict(200, (0..64).collect()), Ok(()));
    assert_eq!(verdict(200, (0..65).collect()), Err(Refusal::BadLimit));
    assert_eq!(verdict(200, vec![3, 3]), Err(Refusal::BadLimit));
    assert_eq!(verdict(200, vec![200]), Err(Refusal::BadLimit));
}

#[test]
fn a_fates_text_is_cut_to_one_line_between_characters() {
    let text = |text: &str| Fate::new(Refusal::Engine, None, 0, text).text().to_owned();
    assert_eq!(text(&"x".repeat(512)).len(), 512);
    assert_eq!(text(&"x".repeat(513)).len(), 512);
    assert_eq!(text(&("x".repeat(511) + "é")).len(), 511);
    assert_eq!(text("two\nlines\u{85}"), "two lines ");
}

#[test]
fn a_refusals_text_is_cut_and_only_a_fingerprint_shows_its_fields() {
    let long = Refused::new(Refusal::World, &"y".repeat(400), [7; 64]);
    assert_eq!(
        (long.text.len(), long.heads),
        (limits::REFUSED_TEXT_MAX, [0; 64])
    );
    assert_eq!(Refused::parse(&long.encode()), Ok(long));
    assert_eq!(
        Refused::new(Refusal::Fingerprint, "", [7; 64]).heads,
        [7; 64]
    );
}

#[test]
fn only_the_first_fate_wins() {
    let mut first = FirstFate::new();
    assert!(first.see(Fate::new(Refusal::PeerLost, Some(2), 0, "")));
    assert!(!first.see(Fate::new(Refusal::Silent, Some(1), 0, "")));
    assert_eq!(first.fate().unwrap().culprit, Some(2));
}

#[test]
fn an_open_message_outside_its_limits_is_not_made() {
    let refusal = |first, interval, silent| Open::new(first, interval, silent).unwrap_err().refusal;
    assert_eq!(refusal(0, 2_000, 3), Refusal::BadLimit);
    assert_eq!(refusal(1, 19, 3), Refusal::BadLimit);
    assert_eq!(refusal(1, 60_001, 3), Refusal::BadLimit);
    assert_eq!(refusal(1, 2_000, 1), Refusal::BadLimit);
    assert_eq!(refusal(1, 2_000, 101), Refusal::BadLimit);
}

#[test]
fn a_roster_of_the_wrong_size_or_with_a_wrong_member_is_not_made() {
    let member = |address: &str| Member {
        first: 0,
        end: 4,
        port: 7_000,
        address: address.into(),
        host: String::new(),
    };
    let refusal = |members: Vec<Member>| Roster::new(members).unwrap_err().refusal;
    assert_eq!(refusal(vec![member("10.0.0.1")]), Refusal::BadLimit);
    assert_eq!(refusal(vec![member("10.0.0.1"); 65]), Refusal::BadLimit);
    assert_eq!(refusal(vec![member("0.0.0.0"); 2]), Refusal::BadAddress);
}

#[test]
fn the_largest_roster_fits_its_frame() {
    let member = Member {
        first: 0,
        end: 4,
        port: 7_000,
        address: "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".into(),
        host: "h".repeat(255),
    };
    let mut out = Vec::new();
    Roster::new(vec![member; 64])
        .unwrap()
        .encode(&mut out)
        .unwrap();
    Header::for_payload(Kind::Roster, 3, 0, &out, true).unwrap();
}

#[test]
fn a_header_that_a_receiver_would_refuse_is_not_made() {
    let refusal = |kind, count, payload: &[u8]| {
        Header::for_payload(kind, 2, count, payload, true)
            .unwrap_err()
            .refusal
    };
    assert_eq!(refusal(Kind::Bye, 0, &[0]), Refusal::PayloadSize);
    assert_eq!(refusal(Kind::Tokens, 2, &[0; 4]), Refusal::PayloadSize);
    assert_eq!(refusal(Kind::Fate, 0, &[0; 529]), Refusal::PayloadTooLarge);
    assert_eq!(refusal(Kind::Credit, 0, &[]), Refusal::BadCount);
    assert_eq!(refusal(Kind::Bye, 1, &[]), Refusal::BadCount);
}

#[test]
fn an_incoming_machine_refuses_more_bytes_than_it_asked_for() {
    let mut incoming = Incoming::default();
    assert_eq!(
        incoming.header_received(33).unwrap_err().refusal,
        Refusal::Local
    );
    assert_eq!(
        incoming.payload_received(0).unwrap_err().refusal,
        Refusal::Local
    );
    assert_eq!(incoming.finish(0).unwrap_err().refusal, Refusal::Local);
    let header = Header::for_payload(Kind::Cancel, 2, 0, &[0; 8], true).unwrap();
    let (taken, event) = incoming.push(&header.encode(), &mut []).unwrap();
    assert_eq!((taken, event), (32, Event::Header(header)));
    assert_eq!(
        incoming.want(),
        Want::Payload {
            header,
            offset: 0,
            bytes: 8
        }
    );
    assert!(incoming.header_space().is_empty());
    assert_eq!(
        incoming.payload_received(9).unwrap_err().refusal,
        Refusal::Local
    );
    assert_eq!(
        incoming.push(&[0; 8], &mut [0; 7]).unwrap_err().refusal,
        Refusal::Local
    );
    incoming.payload_received(8).unwrap();
    assert_eq!(incoming.finish(header.payload_checksum), Ok(header));
    assert_eq!(incoming.want(), Want::Header { bytes: 32 });
}
