//! Black holes, half closes, truncations and resets, as the two ends of a connection see them.
//!
//! What happens to single bytes is in `bytes.rs`.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::bench::{Bench, is_quiet, loopback, receive, receive_all, receive_error, send};
use stagelink_fault::FaultProxy;

#[test]
fn an_untouched_connection_carries_both_directions_and_both_ends() {
    let (bench, pair) = Bench::with(0, &[]);
    send(&pair.near, b"question");
    assert_eq!(receive(&pair.far, 8), b"question");
    send(&pair.far, b"answer");
    pair.far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive_all(&pair.near), b"answer");
    send(&pair.near, b"!");
    drop(pair.near);
    assert_eq!(receive_all(&pair.far), b"!");
    let status = bench.proxy.status();
    assert_eq!((status[0].up.given, status[0].down.given), (9, 6));
}

#[test]
fn a_black_hole_keeps_the_connection_and_loses_nothing() {
    let (bench, pair) = Bench::with(0, &["black_hole"]);
    send(&pair.near, b"up");
    send(&pair.far, b"down");
    assert!(is_quiet(&pair.far) && is_quiet(&pair.near));
    bench.order("heal");
    assert_eq!(receive(&pair.far, 2), b"up");
    assert_eq!(receive(&pair.near, 4), b"down");
}

#[test]
fn a_black_hole_in_one_direction_leaves_the_other() {
    let (_bench, pair) = Bench::with(0, &["black_hole up"]);
    send(&pair.near, b"up");
    send(&pair.far, b"down");
    assert_eq!(receive(&pair.near, 4), b"down");
    assert!(is_quiet(&pair.far));
}

#[test]
fn a_black_hole_hides_that_a_peer_has_gone() {
    let (bench, pair) = Bench::with(0, &["black_hole"]);
    drop(pair.far);
    assert!(is_quiet(&pair.near));
    bench.order("heal");
    assert_eq!(receive_all(&pair.near), b"");
}

#[test]
fn a_black_hole_begins_at_its_offset() {
    let (bench, pair) = Bench::with(0, &["black_hole up 3"]);
    send(&pair.near, b"abcdef");
    assert_eq!(receive(&pair.far, 3), b"abc");
    assert!(is_quiet(&pair.far));
    assert!(bench.proxy.status()[0].up.held);
    bench.order("heal up");
    assert_eq!(receive(&pair.far, 3), b"def");
}

#[test]
fn a_half_close_ends_one_direction_only() {
    let (bench, pair) = Bench::with(0, &[]);
    send(&pair.near, b"abc");
    assert_eq!(receive(&pair.far, 3), b"abc");
    bench.order("half_close up");
    send(&pair.near, b"swallowed");
    assert_eq!(receive_all(&pair.far), b"");
    send(&pair.far, b"still here");
    assert_eq!(receive(&pair.near, 10), b"still here");
}

#[test]
fn a_half_close_at_an_offset_comes_after_the_bytes_before_it() {
    let (_bench, pair) = Bench::with(0, &["half_close up 2"]);
    send(&pair.near, b"abc");
    assert_eq!(receive_all(&pair.far), b"ab");
    assert!(is_quiet(&pair.near));
}

#[test]
fn a_truncation_ends_both_directions_in_order() {
    let (_bench, pair) = Bench::with(0, &["truncate down 4"]);
    send(&pair.far, b"abcdefgh");
    assert_eq!(receive_all(&pair.near), b"abcd");
    assert_eq!(receive_all(&pair.far), b"");
}

#[test]
fn a_truncation_at_nothing_ends_the_connection_at_once() {
    let (_bench, pair) = Bench::with(0, &["truncate up 0"]);
    assert_eq!(receive_all(&pair.near), b"");
    assert_eq!(receive_all(&pair.far), b"");
}

#[test]
fn a_reset_is_seen_as_a_reset_at_both_ends() {
    let (bench, pair) = Bench::with(0, &[]);
    send(&pair.near, b"a");
    assert_eq!(receive(&pair.far, 1), b"a");
    bench.order("reset");
    assert_eq!(receive_error(&pair.near), ErrorKind::ConnectionReset);
    assert_eq!(receive_error(&pair.far), ErrorKind::ConnectionReset);
    let later = bench.connect();
    send(&later.near, b"b");
    assert_eq!(receive(&later.far, 1), b"b");
}

#[test]
fn a_reset_at_an_offset_comes_when_the_stream_is_there() {
    let (_bench, pair) = Bench::with(0, &["reset up 5"]);
    send(&pair.near, b"abc");
    assert_eq!(receive(&pair.far, 3), b"abc");
    assert!(is_quiet(&pair.near));
    send(&pair.near, b"def");
    assert_eq!(receive_error(&pair.far), ErrorKind::ConnectionReset);
    assert_eq!(receive_error(&pair.near), ErrorKind::ConnectionReset);
}

#[test]
fn a_reset_by_one_peer_reaches_the_other() {
    let (_bench, pair) = Bench::with(0, &[]);
    send(&pair.far, b"unread");
    assert_eq!(receive(&pair.near, 1), b"u");
    // Closing with unread bytes is a reset.
    drop(pair.near);
    assert_eq!(receive_error(&pair.far), ErrorKind::ConnectionReset);
}

#[test]
fn a_command_for_one_connection_leaves_the_others() {
    let (bench, first) = Bench::with(0, &["truncate up 1 @1"]);
    let second = bench.connect();
    for pair in [&first, &second] {
        send(&pair.near, b"ab");
    }
    assert_eq!(receive_all(&second.far), b"a");
    assert_eq!(receive(&first.far, 2), b"ab");
}

#[test]
fn a_target_that_listens_later_is_reached() {
    let place = TcpListener::bind(loopback()).unwrap();
    let target = place.local_addr().unwrap();
    drop(place);
    let proxy = FaultProxy::start(loopback(), target, 0).unwrap();
    let near = TcpStream::connect(proxy.address()).unwrap();
    send(&near, b"early");
    let listener = TcpListener::bind(target).unwrap();
    let (far, _) = listener.accept().unwrap();
    assert_eq!(receive(&far, 5), b"early");
}

#[test]
fn a_dropped_proxy_ends_its_connections() {
    let (bench, pair) = Bench::with(0, &["black_hole"]);
    drop(bench);
    assert_eq!(receive_all(&pair.near), b"");
    assert_eq!(receive_all(&pair.far), b"");
}

#[test]
fn a_wildcard_listen_address_is_refused() {
    let refused = FaultProxy::start("0.0.0.0:0".parse().unwrap(), loopback(), 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn ending_a_connection_that_has_not_come_is_refused() {
    let bench = Bench::new(0);
    let refused = bench.proxy.control("reset @0").unwrap_err();
    assert_eq!(refused.reason, "no_connection");
}
