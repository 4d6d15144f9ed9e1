//! Rings whose links are sealed: large rows in several records, and what a record costs.
//! That a changed record is refused is tested beside the ciphers and, by a proxy, in tests/ring.

mod support;

use std::thread;

use stagelink_net::lent::{Lent, LentMut};
use stagelink_net::ring::Ring;
use stagelink_net::wait::Uninterrupted;
use stagelink_proto::hello::Suite;
use stagelink_proto::plan::{Op, Returns};

use support::{ROWS_MAX, open_ring, plan};

/// Values of a row: the largest round is two and a half records.
const WIDTH: u32 = 40;
const BYTES: usize = (ROWS_MAX * WIDTH * 4) as usize;

/// One round of the most rows, returned as they came; what the lead's lanes to the next have sent.
fn largest_round(suite: Suite) -> u64 {
    let rings = open_ring(2, |settings| {
        settings.suite = suite;
        settings.description.width = WIDTH;
    });
    let out: Vec<u8> = (0..BYTES)
        .map(|at| u8::try_from((at * 31 + at / 255) % 256).unwrap())
        .collect();
    let mut back = vec![0; BYTES];
    thread::scope(|scope| {
        scope.spawn(|| return_one(&rings[1]));
        let plan = plan(Op::Open, 0, ROWS_MAX, 0, Returns::All);
        let round = rings[0].send_plan(&plan).unwrap();
        let lent = (Lent::from_slice(&out), LentMut::from_slice(&mut back));
        let came = rings[0].exchange(round, lent.0, lent.1, &Uninterrupted);
        assert_eq!(came.unwrap(), ROWS_MAX);
        rings[0].close();
    });
    assert!(out == back, "every byte comes back");
    let figures = rings[0].figures();
    let lanes = figures.iter().filter(|link| link.link.starts_with("next"));
    lanes.map(|lane| lane.figures.bytes_sent).sum()
}

fn return_one(ring: &Ring) {
    let (round, _) = ring.receive_plan(&Uninterrupted).unwrap().unwrap();
    let mut rows = vec![0; BYTES];
    let lent = LentMut::from_slice(&mut rows);
    ring.receive_rows(round, lent, &Uninterrupted).unwrap();
    ring.send_rows(round, Lent::from_slice(&rows), &Uninterrupted)
        .unwrap();
    assert!(ring.receive_plan(&Uninterrupted).unwrap().is_none());
    ring.close();
}

#[test]
fn rows_of_several_records_come_back_and_each_record_costs_a_tag() {
    let plain = largest_round(Suite::Psk);
    // Three records of rows, and one of the bye.
    assert_eq!(largest_round(Suite::SealedAes), plain + 16 * 4);
    assert_eq!(largest_round(Suite::SealedChaCha), plain + 16 * 4);
}
