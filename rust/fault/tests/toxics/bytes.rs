//! Which bytes arrive, in which pieces and when.
//!
//! How a connection ends is in `endings.rs`.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::bench::{Bench, receive, receive_all, send};

/// Bytes that do not repeat soon.
fn pattern(count: u32) -> Vec<u8> {
    (0..count)
        .flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

/// What comes out of a proxy with `lines` when `input` goes in.
fn through(seed: u64, lines: &[&str], input: &[u8]) -> Vec<u8> {
    let (_bench, pair) = Bench::with(seed, lines);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&pair.near, input);
            pair.near.shutdown(Shutdown::Write).unwrap();
        });
        receive_all(&pair.far)
    })
}

#[test]
fn many_bytes_arrive_unchanged() {
    let input = pattern(2 << 20);
    assert!(through(0, &[], &input) == input);
}

#[test]
fn many_bytes_arrive_unchanged_in_slices_with_latency_and_jitter() {
    let input = pattern(64 << 10);
    let lines = ["slice up 4000", "latency up 1 3"];
    assert!(through(0, &lines, &input) == input);
}

#[test]
fn a_flip_changes_one_byte_and_is_counted() {
    let (bench, pair) = Bench::with(0, &["flip down 2 0x01"]);
    send(&pair.far, &[8, 8, 8, 8]);
    assert_eq!(receive(&pair.near, 4), [8, 8, 9, 8]);
    assert_eq!(bench.proxy.status()[0].down.flipped, 1);
}

#[test]
fn a_flip_without_a_mask_turns_one_bit() {
    let out = through(3, &["flip up 1"], &[0, 0, 0]);
    assert_eq!((out[0], out[1].count_ones(), out[2]), (0, 1, 0));
}

#[test]
fn the_same_seed_harms_the_same_bytes() {
    let input = pattern(16 << 10);
    let first = through(1, &["flip_rate up 1000"], &input);
    assert!(first != input && first.len() == input.len());
    assert!(through(1, &["flip_rate up 1000", "slice up 999"], &input) == first);
    assert!(through(2, &["flip_rate up 1000"], &input) != first);
}

#[test]
fn a_chunk_comes_twice() {
    assert_eq!(through(0, &["duplicate up 1 2"], b"abcd"), b"abcbcd");
}

#[test]
fn two_chunks_change_places() {
    assert_eq!(through(0, &["reorder up 1 2"], b"abcdef"), b"adebcf");
}

#[test]
fn two_chunks_change_places_across_reads() {
    let (bench, pair) = Bench::with(0, &["reorder up 0 2"]);
    send(&pair.near, b"abc");
    while bench.proxy.status()[0].up.taken < 3 {
        std::thread::yield_now();
    }
    send(&pair.near, b"de");
    assert_eq!(receive(&pair.far, 5), b"cdabe");
}

#[test]
fn a_late_command_says_that_its_offset_has_passed() {
    let (bench, pair) = Bench::with(0, &[]);
    send(&pair.near, b"abcd");
    receive(&pair.far, 4);
    assert_eq!(bench.order("flip up 2"), r#"{"set":0,"past":1}"#);
    assert_eq!(bench.order("flip up 4"), r#"{"set":1,"past":0}"#);
}

#[test]
fn a_pause_lies_between_two_slices() {
    let (_bench, pair) = Bench::with(0, &["slice up 1 5"]);
    let start = Instant::now();
    send(&pair.near, b"abc");
    assert_eq!(receive(&pair.far, 3), b"abc");
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(10), "{took:?}");
}

#[test]
fn latency_delays_and_does_not_slow() {
    let (_bench, pair) = Bench::with(0, &["latency up 50"]);
    let start = Instant::now();
    for _ in 0..20 {
        send(&pair.near, &[0; 1000]);
    }
    receive(&pair.far, 20_000);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(50), "{took:?}");
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[test]
fn a_rate_is_kept() {
    let (_bench, pair) = Bench::with(0, &["rate up 1000000"]);
    let start = Instant::now();
    send(&pair.near, &vec![0; 100_000]);
    receive(&pair.far, 100_000);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(85), "{took:?}");
}

#[test]
fn a_busy_stream_does_not_keep_a_command_waiting() {
    let (bench, pair) = Bench::with(0, &[]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&pair.near, &vec![0; 64 << 20]);
        });
        scope.spawn(|| receive_all(&pair.far));
        for _ in 0..20 {
            let start = Instant::now();
            bench.order("status");
            assert!(start.elapsed() < Duration::from_secs(1));
        }
        bench.order("half_close up");
    });
}
