//! What a lane decides, on a clock that the tests turn.
//!
//! No socket is opened here.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn lane(orders: &[Order]) -> Lane {
    let mut lane = Lane::new(Draw::new(5, 0));
    for &order in orders {
        assert!(lane.apply(order, Duration::ZERO).unwrap());
    }
    lane
}

/// Writes all that goes until nothing more happens; returns it with the moment of the last.
fn drain(lane: &mut Lane, mut now: Duration) -> (Vec<u8>, Vec<usize>, Duration) {
    let (mut out, mut pieces) = (Vec::new(), Vec::new());
    loop {
        match lane.next(now) {
            Next::Write(bytes) => {
                let count = bytes.len();
                out.extend_from_slice(bytes);
                pieces.push(count);
                lane.wrote(count, now);
            }
            Next::Until(moment) => now = moment,
            Next::Idle | Next::End(_) => return (out, pieces, now),
        }
    }
}

#[test]
fn latency_keeps_the_order_when_jitter_would_turn_it() {
    let mut lane = lane(&[Order::Latency {
        fixed: 10 * MS,
        jitter: 50 * MS,
    }]);
    for byte in 0..100 {
        lane.take(&mut [byte], Duration::ZERO);
    }
    let (out, _, last) = drain(&mut lane, Duration::ZERO);
    assert_eq!(out, (0..100).collect::<Vec<u8>>());
    assert!((10 * MS..60 * MS).contains(&last), "{last:?}");
}

#[test]
fn a_rate_is_paced_in_small_steps() {
    let mut lane = lane(&[Order::Rate {
        bytes_per_second: 100_000,
    }]);
    lane.take(&mut vec![0; 50_000], Duration::from_secs(1));
    let (out, pieces, last) = drain(&mut lane, Duration::from_secs(1));
    assert_eq!(out.len(), 50_000);
    assert!(pieces.iter().all(|&piece| piece <= 500), "{pieces:?}");
    let took = last.saturating_sub(Duration::from_secs(1));
    assert!((480 * MS..=500 * MS).contains(&took), "{took:?}");
}

#[test]
fn slices_are_drawn_from_the_seed_and_lose_nothing() {
    let orders = [Order::Slice {
        bytes_max: 7,
        pause: Duration::ZERO,
    }];
    let input: Vec<u8> = (0..200).collect();
    let run = |cut: usize| {
        let mut lane = lane(&orders);
        for piece in input.chunks(cut) {
            lane.take(&mut piece.to_vec(), Duration::ZERO);
        }
        drain(&mut lane, Duration::ZERO)
    };
    let (out, pieces, _) = run(200);
    assert_eq!(out, input);
    assert!(pieces.iter().all(|&piece| (1..=7).contains(&piece)));
    assert!(pieces.windows(2).any(|two| two[0] != two[1]));
    assert_eq!(run(200).1, pieces);
    assert_eq!(run(50).0, input);
}

#[test]
fn a_black_hole_reads_and_writes_nothing_until_it_is_healed() {
    let mut lane = lane(&[Order::BlackHole { at: Some(2) }]);
    assert_eq!(lane.room(), 2);
    lane.take(&mut [1, 2], Duration::ZERO);
    assert_eq!(drain(&mut lane, Duration::ZERO).0, [1, 2]);
    assert_eq!(lane.room(), 0);
    assert!(lane.status().held);
    lane.apply(Order::Heal, MS).unwrap();
    lane.take(&mut [3], MS);
    assert_eq!(drain(&mut lane, MS).0, [3]);
}

#[test]
fn what_was_queued_before_a_black_hole_goes_on_after_it() {
    let mut lane = lane(&[]);
    lane.take(&mut [1, 2], Duration::ZERO);
    lane.apply(Order::BlackHole { at: None }, Duration::ZERO)
        .unwrap();
    assert_eq!(lane.next(MS), Next::Idle);
    lane.apply(Order::Heal, MS).unwrap();
    assert_eq!(drain(&mut lane, MS).0, [1, 2]);
}

#[test]
fn an_ending_comes_after_the_bytes_before_it_and_swallows_the_rest() {
    let mut lane = lane(&[Order::Truncate { at: 3 }]);
    assert_eq!(lane.room(), 3);
    lane.take(&mut [1, 2, 3], Duration::ZERO);
    lane.take(&mut [4, 5], Duration::ZERO);
    assert_eq!(lane.next(MS), Next::Write(&[1, 2, 3]));
    lane.wrote(3, MS);
    assert_eq!(lane.next(MS), Next::End(Ending::Close));
    assert!(lane.is_over());
}

#[test]
fn a_fault_behind_the_stream_is_reported_as_past() {
    let mut lane = lane(&[]);
    lane.take(&mut [1, 2], Duration::ZERO);
    let order = Order::Flip { at: 1, mask: None };
    assert!(!lane.apply(order, Duration::ZERO).unwrap());
}

#[test]
fn a_full_queue_stops_the_reading() {
    let mut lane = lane(&[Order::Latency {
        fixed: Duration::from_secs(60),
        jitter: Duration::ZERO,
    }]);
    while lane.room() > 0 {
        let count = lane.room();
        lane.take(&mut vec![0; count], Duration::ZERO);
    }
    assert_eq!(lane.status().taken, QUEUE_BYTES_MAX as u64);
}

#[test]
fn marks_have_a_limit() {
    let mut lane = lane(&[]);
    let mut flip = |at| lane.apply(Order::Flip { at, mask: None }, Duration::ZERO);
    for at in 0..MARKS_MAX as u64 {
        assert!(flip(at).unwrap());
    }
    assert_eq!(flip(9).unwrap_err().reason, "too_many_marks");
}
