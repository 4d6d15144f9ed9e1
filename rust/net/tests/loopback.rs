//! Rings of two and four ranks in one process: rounds of every size, both wait strategies, bye.
//! What goes wrong is in `bad_peer` and `fail_fast`.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use stagelink_net::error::Kind;
use stagelink_net::join::Settings;
use stagelink_net::lent::{Lent, LentMut};
use stagelink_net::ring::Ring;
use stagelink_net::wait::{Strategy, Uninterrupted};
use stagelink_proto::error::Refusal;
use stagelink_proto::figures::Figures;
use stagelink_proto::hello::Suite;
use stagelink_proto::plan::{Op, Plan, Returns};

use support::{ROWS_MAX, WIDTH, follow, open_ring, plan};

/// Serve every follower on a thread of its own while `lead` runs on this one.
fn serve<T>(rings: &[Ring], lead: impl FnOnce(&Ring) -> T) -> T {
    thread::scope(|scope| {
        for ring in &rings[1..] {
            scope.spawn(move || follow(ring).unwrap());
        }
        let result = lead(&rings[0]);
        rings[0].close();
        result
    })
}

fn bytes(rows: u32, seed: u32) -> Vec<u8> {
    let count = rows * WIDTH * 4;
    (0..count)
        .map(|index| u8::try_from((index * 31 + seed) % 251).unwrap())
        .collect()
}

fn go_round(ring: &Ring, plan: &Plan, out: &[u8], back: &mut [u8]) -> u32 {
    let round = ring.send_plan(plan).unwrap();
    let (out, back) = (Lent::from_slice(out), LentMut::from_slice(back));
    ring.exchange(round, out, back, &Uninterrupted).unwrap()
}

/// Rounds of one row, of a few and of the most, whose bytes every follower adds one to.
fn rows_go_round(world: u32, change: impl Fn(&mut Settings) + Sync) {
    let rings = open_ring(world, change);
    serve(&rings, |lead| {
        let mut position = 0;
        let mut before = 0;
        for (index, rows) in [1, 3, ROWS_MAX, 1, 257].into_iter().enumerate() {
            let op = if index == 0 { Op::Open } else { Op::Continue };
            let plan = plan(op, position, rows, before, Returns::All);
            let out = bytes(rows, position);
            let mut back = vec![0; out.len()];
            assert_eq!(go_round(lead, &plan, &out, &mut back), rows);
            let step = u8::try_from(world - 1).unwrap();
            assert!(
                out.iter()
                    .zip(&back)
                    .all(|(out, back)| out.wrapping_add(step) == *back)
            );
            (position, before) = (position + rows, rows);
        }
    });
}

#[test]
fn rows_go_round_a_ring_of_two() {
    rows_go_round(2, |_| {});
}

#[test]
fn rows_go_round_a_ring_of_four() {
    rows_go_round(4, |_| {});
}

#[test]
fn a_ring_that_spins_and_goes_without_checksums_moves_the_same_bytes() {
    rows_go_round(2, |settings| {
        settings.strategy = Strategy::Spin;
        settings.checksums = false;
    });
}

#[test]
fn a_ring_that_sleeps_and_spins_moves_the_same_bytes() {
    rows_go_round(2, |settings| settings.strategy = Strategy::Adaptive);
}

#[test]
fn a_sealed_ring_moves_the_same_bytes_with_either_cipher() {
    for (world, suite) in [(2, Suite::SealedAes), (3, Suite::SealedChaCha)] {
        rows_go_round(world, |settings| settings.suite = suite);
    }
}

#[test]
fn only_the_rows_that_the_plan_wants_return() {
    let rings = open_ring(2, |_| {});
    serve(&rings, |lead| {
        let out = bytes(5, 1);
        let mut back = vec![0; out.len()];
        let last = plan(Op::Open, 0, 5, 0, Returns::Last);
        assert_eq!(go_round(lead, &last, &out, &mut back), 1);
        let row = (WIDTH * 4) as usize;
        assert_eq!(back[0], out[4 * row].wrapping_add(1));
        let none = plan(Op::Continue, 5, 5, 5, Returns::None);
        assert_eq!(go_round(lead, &none, &out, &mut back), 0);
    });
}

#[test]
fn a_plan_without_rows_moves_no_rows_and_a_close_frees_the_stream() {
    let rings = open_ring(2, |_| {});
    serve(&rings, |lead| {
        let mut back = bytes(1, 0);
        go_round(
            lead,
            &plan(Op::Open, 0, 1, 0, Returns::All),
            &bytes(1, 0),
            &mut back,
        );
        lead.send_plan(&plan(Op::Close, 0, 0, 0, Returns::None))
            .unwrap();
        let again = lead
            .send_plan(&plan(Op::Continue, 1, 1, 1, Returns::All))
            .unwrap_err();
        assert_eq!(again.reason, "unknown_stream");
    });
}

#[test]
fn several_rounds_are_on_the_ring_at_once_up_to_the_agreed_number() {
    let rings = open_ring(3, |_| {});
    serve(&rings, |lead| {
        let mut rounds = Vec::new();
        for index in 0..8 {
            let op = if index == 0 { Op::Open } else { Op::Continue };
            let accepted = u32::from(index > 0);
            rounds.push(
                lead.send_plan(&plan(op, index, 1, accepted, Returns::All))
                    .unwrap(),
            );
        }
        let ninth = lead
            .send_plan(&plan(Op::Continue, 8, 1, 1, Returns::All))
            .unwrap_err();
        assert_eq!(ninth.reason, "too_many_rounds");
        let mut back = bytes(1, 0);
        // Two credits a boundary: the lead runs two rounds ahead of what it takes back.
        lead.send_rows(rounds[0], Lent::from_slice(&bytes(1, 0)), &Uninterrupted)
            .unwrap();
        for (index, round) in rounds.iter().enumerate() {
            if let Some(next) = rounds.get(index + 1) {
                let seed = u32::try_from(index + 1).unwrap();
                lead.send_rows(*next, Lent::from_slice(&bytes(1, seed)), &Uninterrupted)
                    .unwrap();
            }
            lead.receive_rows(*round, LentMut::from_slice(&mut back), &Uninterrupted)
                .unwrap();
            assert_eq!(usize::from(back[0]), index + 2);
        }
    });
}

#[test]
fn a_ring_that_idles_for_many_intervals_still_runs() {
    let rings = open_ring(2, |settings| settings.keepalive = Duration::from_millis(20));
    serve(&rings, |lead| {
        let until = Instant::now() + Duration::from_millis(400);
        let mut back = bytes(1, 0);
        let mut position = 0;
        while Instant::now() < until {
            // The waits between rounds are longer than the interval, so keep-alives take numbers.
            thread::park_timeout(Duration::from_millis(60));
            let op = if position == 0 {
                Op::Open
            } else {
                Op::Continue
            };
            let plan = plan(op, position, 1, u32::from(position > 0), Returns::All);
            go_round(lead, &plan, &bytes(1, position), &mut back);
            position += 1;
        }
        let control = lead
            .figures()
            .into_iter()
            .find(|peer| peer.link == "control")
            .unwrap();
        assert!(control.figures.frames_sent > u64::from(position) + 10);
    });
}

#[test]
fn rows_that_are_too_few_or_of_another_round_are_refused_before_anything_is_sent() {
    let rings = open_ring(2, |_| {});
    serve(&rings, |lead| {
        let round = lead
            .send_plan(&plan(Op::Open, 0, 2, 0, Returns::All))
            .unwrap();
        let small = bytes(1, 0);
        let refused = lead
            .send_rows(round, Lent::from_slice(&small), &Uninterrupted)
            .unwrap_err();
        assert_eq!(refused.reason, "local");
        let out = bytes(2, 0);
        let other = lead
            .send_rows(round + 1, Lent::from_slice(&out), &Uninterrupted)
            .unwrap_err();
        assert_eq!(other.reason, "local");
        let mut back = bytes(2, 0);
        lead.exchange(
            round,
            Lent::from_slice(&out),
            LentMut::from_slice(&mut back),
            &Uninterrupted,
        )
        .unwrap();
    });
}

#[test]
fn every_rank_knows_all_members_and_counts_what_it_moved() {
    let rings = open_ring(3, |_| {});
    let figures = serve(&rings, |lead| {
        let mut back = bytes(1, 0);
        go_round(
            lead,
            &plan(Op::Open, 0, 1, 0, Returns::All),
            &bytes(1, 0),
            &mut back,
        );
        lead.figures()
    });
    for ring in &rings {
        let members = ring.members();
        let ranges: Vec<_> = members
            .iter()
            .map(|member| (member.first, member.end))
            .collect();
        assert_eq!(ranges, [(0, 10), (10, 20), (20, 30)]);
        assert!(members.iter().all(|member| member.address.is_some()));
    }
    let next = figures.iter().find(|peer| peer.link == "next").unwrap();
    assert_eq!(
        (next.rank, next.figures.bytes_sent),
        (1, u64::from(32 + WIDTH * 4))
    );
    assert_eq!(rings[0].readies().len(), 2);
}

#[test]
fn a_plan_that_cuts_back_is_refused_where_a_stage_cannot_keep() {
    let rings = open_ring(2, |settings| {
        settings.description.keep = settings.description.rank == 0;
    });
    serve(&rings, |lead| {
        let mut back = bytes(2, 0);
        let open = plan(Op::Open, 0, 2, 0, Returns::All);
        go_round(lead, &open, &bytes(2, 0), &mut back);
        let cut = lead.send_plan(&plan(Op::Continue, 1, 1, 1, Returns::All));
        let refused = cut.unwrap_err();
        assert_eq!(refused.reason, "engine");
        assert!(refused.text.contains("rank 1 (host1 "), "{refused}");
        let whole = plan(Op::Continue, 2, 2, 2, Returns::All);
        go_round(lead, &whole, &bytes(2, 0), &mut back);
    });
}

#[test]
fn followers_say_what_their_loops_came_to_once_the_lead_has_said_bye() {
    let rings = open_ring(3, |_| {});
    let figures = |rank: u32| Figures::of(rank, [7, 9, 11, 13, u64::from(rank), 17]);
    let early = rings[1].tell_figures(&figures(1)).unwrap_err();
    assert_eq!((early.kind, early.reason), (Kind::LocalProtocol, "local"));
    thread::scope(|scope| {
        // Rank 2 says nothing: it may.
        for ring in &rings[1..] {
            scope.spawn(move || {
                assert!(ring.receive_plan(&Uninterrupted).unwrap().is_none());
                if ring.rank() == 1 {
                    ring.tell_figures(&figures(1)).unwrap();
                }
                ring.close();
            });
        }
        rings[0].close();
    });
    assert_eq!(rings[0].told_figures(), [figures(1)]);
}

#[test]
fn a_fate_after_the_bye_is_no_fault_of_who_tells_figures() {
    let rings = open_ring(2, |_| {});
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(rings[1].receive_plan(&Uninterrupted).unwrap().is_none());
            rings[1].fail(Refusal::Interrupted, "interrupted after the bye");
            assert!(rings[1].check().is_err());
            rings[1].tell_figures(&Figures::of(1, [0; 6])).unwrap();
            rings[1].close();
        });
        rings[0].close();
    });
}
