//! One rank fails; every other rank reports the same named cause, within a second.
//! Peers that break rules are in `bad_peer`.

mod support;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use stagelink_net::error::{Kind, LinkError};
use stagelink_net::lent::{Lent, LentMut};
use stagelink_net::ring::Ring;
use stagelink_net::wait::{Interrupt, Uninterrupted};
use stagelink_proto::Refusal;
use stagelink_proto::plan::{Op, Returns};
use stagelink_proto::progress::Phase;

use support::{WIDTH, follow, join_all, open_ring, plan, ready};

/// The promise: from the failure to every survivor's error.
const LIMIT: Duration = Duration::from_secs(1);

/// Wait where each rank waits when nothing is to do: followers for a plan, the lead for rows.
fn wait_idle(ring: &Ring) -> LinkError {
    if ring.rank() != 0 {
        return follow(ring).unwrap_err();
    }
    let round = ring.send_plan(&plan(Op::Open, 0, 1, 0, Returns::All));
    let mut rows = vec![0; (WIDTH * 4) as usize];
    let back = LentMut::from_slice(&mut rows);
    round
        .and_then(|round| ring.receive_rows(round, back, &Uninterrupted))
        .unwrap_err()
}

/// Run `wait` on every rank but `culprit`, let `fail` happen to it, and give the survivors' errors.
fn survivors(
    mut rings: Vec<Ring>,
    culprit: usize,
    fail: impl FnOnce(Ring),
    wait: impl Fn(&Ring) -> LinkError + Sync,
) -> Vec<LinkError> {
    let lost = rings.remove(culprit);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for ring in &rings {
            let (sender, wait) = (sender.clone(), &wait);
            scope.spawn(move || {
                let error = wait(ring);
                sender.send((error, Instant::now())).unwrap();
            });
        }
        thread::park_timeout(Duration::from_millis(50));
        let failed = Instant::now();
        fail(lost);
        let errors = rings.iter().map(|_| {
            let (error, when) = receiver.recv_timeout(Duration::from_secs(5)).unwrap();
            assert!(
                when - failed < LIMIT,
                "{error} came after {:?}",
                when - failed
            );
            error
        });
        errors.collect()
    })
}

#[test]
fn a_lost_rank_is_named_by_every_other_rank() {
    for culprit in 0..4_u32 {
        let errors = survivors(open_ring(4, |_| {}), culprit as usize, drop, wait_idle);
        for error in errors {
            assert_eq!(
                (error.reason, error.rank),
                ("peer_lost", Some(culprit)),
                "{error}"
            );
            assert_eq!(error.kind, Kind::PeerLost);
            assert!(
                error
                    .text
                    .starts_with(&format!("rank {culprit} (host{culprit} 127.0.0.1:"))
            );
        }
    }
}

#[test]
fn a_rank_that_is_lost_while_all_load_is_named() {
    for culprit in 0..3_u32 {
        let wait = |ring: &Ring| ready(ring).unwrap_err();
        let errors = survivors(join_all(3, |_| {}), culprit as usize, drop, wait);
        for error in errors {
            assert_eq!(
                (error.reason, error.rank),
                ("peer_lost", Some(culprit)),
                "{error}"
            );
        }
    }
}

#[test]
fn an_engine_that_fails_is_reported_in_the_same_words_by_all() {
    for culprit in 0..3_u32 {
        let rings = open_ring(3, |_| {});
        let fail = |ring: Ring| ring.fail(Refusal::Engine, "engine: no slot for stream 7");
        let errors = survivors(rings, culprit as usize, fail, wait_idle);
        for error in errors {
            assert_eq!(
                (error.reason, error.rank, error.kind),
                ("engine", Some(culprit), Kind::Engine)
            );
            let text = format!("rank {culprit} (host{culprit} ");
            assert!(error.text.starts_with(&text), "{error}");
            assert!(error.text.ends_with("engine: no slot for stream 7"));
        }
    }
}

#[test]
fn the_first_failure_wins() {
    let rings = open_ring(2, |_| {});
    rings[1].fail(Refusal::Engine, "first");
    rings[1].fail(Refusal::Engine, "second");
    let error = wait_idle(&rings[0]);
    assert!(error.text.ends_with("first"));
    rings[0].fail(Refusal::Engine, "third");
    assert_eq!(wait_idle(&rings[0]), error);
}

#[test]
fn a_lost_rank_ends_a_send_that_nobody_reads() {
    let rings = open_ring(3, |_| {});
    // More than the kernel holds for a neighbour that is not receiving.
    let wait = |ring: &Ring| {
        if ring.rank() != 0 {
            return wait_idle_without_receiving(ring);
        }
        let rows = support::ROWS_MAX;
        let bytes = vec![0; (rows * WIDTH * 4) as usize];
        let mut position = 0;
        loop {
            let op = if position == 0 {
                Op::Open
            } else {
                Op::Continue
            };
            let accepted = if position == 0 { 0 } else { rows };
            let plan = plan(op, position, rows, accepted, Returns::None);
            let sent = ring
                .send_plan(&plan)
                .and_then(|round| ring.send_rows(round, Lent::from_slice(&bytes), &Uninterrupted));
            match sent {
                Ok(()) => position += rows,
                Err(error) => return error,
            }
        }
    };
    let errors = survivors(rings, 2, drop, wait);
    assert!(
        errors.iter().all(|error| error.rank == Some(2)),
        "{errors:?}"
    );
}

fn wait_idle_without_receiving(ring: &Ring) -> LinkError {
    loop {
        match ring.receive_plan(&Uninterrupted) {
            Ok(plan) => assert!(plan.is_some()),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_stage_that_computes_for_long_is_not_declared_dead() {
    let rings = open_ring(2, |settings| settings.keepalive = Duration::from_millis(20));
    thread::scope(|scope| {
        scope.spawn(|| {
            rings[1].progress(Phase::Computing, 1, Duration::from_secs(20), 0);
            thread::park_timeout(Duration::from_millis(500));
            follow(&rings[1]).unwrap();
        });
        let round = rings[0]
            .send_plan(&plan(Op::Open, 0, 1, 0, Returns::All))
            .unwrap();
        let out = vec![0; (WIDTH * 4) as usize];
        let mut back = out.clone();
        let (out, back) = (Lent::from_slice(&out), LentMut::from_slice(&mut back));
        assert_eq!(rings[0].exchange(round, out, back, &Uninterrupted), Ok(1));
        rings[0].close();
    });
}

#[test]
fn a_stage_that_stands_still_beyond_its_own_limit_is_named_although_it_is_alive() {
    let rings = open_ring(3, |settings| settings.keepalive = Duration::from_millis(20));
    rings[1].progress(Phase::Computing, 7, Duration::from_millis(100), 0);
    let error = wait_idle(&rings[0]);
    assert_eq!(
        (error.reason, error.rank, error.kind),
        ("stalled", Some(1), Kind::Deadline)
    );
    assert!(
        error.text.contains("last seen computing round 7"),
        "{error}"
    );
    assert_eq!(wait_idle(&rings[2]).text, error.text);
}

#[test]
fn a_signal_ends_a_wait_within_two_slices_and_leaves_the_ring_as_it_was() {
    struct Once(std::cell::Cell<bool>);
    impl Interrupt for Once {
        fn is_pending(&self) -> bool {
            !self.0.replace(true)
        }
    }
    let rings = open_ring(2, |_| {});
    let round = rings[0]
        .send_plan(&plan(Op::Open, 0, 1, 0, Returns::All))
        .unwrap();
    let out = vec![0; (WIDTH * 4) as usize];
    let mut back = out.clone();
    let start = Instant::now();
    let once = Once(false.into());
    rings[0]
        .send_rows(round, Lent::from_slice(&out), &once)
        .unwrap();
    let error = rings[0]
        .receive_rows(round, LentMut::from_slice(&mut back), &once)
        .unwrap_err();
    assert_eq!(error.kind, Kind::Interrupted);
    assert!(start.elapsed() < Duration::from_millis(100));
    thread::scope(|scope| {
        scope.spawn(|| follow(&rings[1]).unwrap());
        let back = LentMut::from_slice(&mut back);
        assert_eq!(rings[0].receive_rows(round, back, &Uninterrupted), Ok(1));
        rings[0].close();
    });
}

#[test]
fn a_follower_that_leaves_early_ends_the_ring_by_name() {
    let rings = open_ring(2, |_| {});
    rings[1].close();
    let error = wait_idle(&rings[0]);
    assert_eq!((error.reason, error.rank), ("interrupted", Some(1)));
}
