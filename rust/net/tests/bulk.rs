//! The bulk lane of rings in one process: posted buffers, credits, order, cancels and failures.

#![allow(
    unsafe_code,
    missing_docs,
    reason = "buffers are lent to the link as an extension lends them"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stagelink_net::buffers::AlignedBuffer;
use stagelink_net::error::{Kind, LinkError};
use stagelink_net::lent::{Lent, LentMut};
use stagelink_net::ring::Ring;
use stagelink_net::wait::{Interrupt, Uninterrupted};
use stagelink_proto::hello::Suite;
use stagelink_proto::plan::{Op, Returns};

mod support;

use support::{ROWS_MAX, WIDTH, open_ring, plan};

const BYTES: usize = (ROWS_MAX * WIDTH * 4) as usize;
const SOON: Option<Duration> = Some(Duration::from_secs(5));

fn buffer() -> AlignedBuffer {
    AlignedBuffer::new(BYTES).unwrap()
}

/// Lends a buffer to a transfer that every test sees the end of before the buffer goes.
fn rows_in(buffer: &AlignedBuffer) -> LentMut<'static> {
    // SAFETY: the tests keep the buffer until the value of `post_receive` is gone.
    unsafe { LentMut::new(buffer.as_ptr(), buffer.len()) }
}

fn rows_out(buffer: &AlignedBuffer) -> Lent<'static> {
    // SAFETY: as above.
    unsafe { Lent::new(buffer.as_ptr(), buffer.len()) }
}

fn fill(buffer: &AlignedBuffer, seed: usize) {
    for at in 0..buffer.len() {
        let byte = u8::try_from((at * 7 + at / 251 + seed) % 256).unwrap();
        // SAFETY: inside the buffer, which no transfer uses now.
        unsafe { buffer.as_ptr().add(at).write(byte) };
    }
}

fn bytes(buffer: &AlignedBuffer) -> &[u8] {
    // SAFETY: no transfer writes into it now.
    unsafe { std::slice::from_raw_parts(buffer.as_ptr(), buffer.len()) }
}

/// Plans of full chunks of one stream, none of whose rows return.
fn chunk(ring: &Ring, number: u32) -> u64 {
    let op = if number == 0 { Op::Open } else { Op::Continue };
    let accepted = if number == 0 { 0 } else { ROWS_MAX };
    let plan = plan(op, number * ROWS_MAX, ROWS_MAX, accepted, Returns::None);
    ring.send_plan(&plan).unwrap()
}

fn take_plan(ring: &Ring) -> u64 {
    ring.receive_plan(&Uninterrupted).unwrap().unwrap().0
}

fn pair() -> Vec<Ring> {
    open_ring(2, |_| {})
}

#[test]
fn chunks_land_in_posted_buffers_in_order_while_the_caller_computes() {
    chunks_land_in_order(&pair());
}

#[test]
fn chunks_of_a_sealed_ring_land_in_posted_buffers_in_order() {
    for suite in [Suite::SealedAes, Suite::SealedChaCha] {
        chunks_land_in_order(&open_ring(2, |settings| settings.suite = suite));
    }
}

fn chunks_land_in_order(rings: &[Ring]) {
    let (out, into) = ([buffer(), buffer()], [buffer(), buffer()]);
    fill(&out[0], 1);
    fill(&out[1], 2);
    let received: Vec<_> = into
        .iter()
        .map(|it| rings[1].post_receive(rows_in(it)).unwrap())
        .collect();
    let sent: Vec<_> = (0..2)
        .map(|at| {
            let round = chunk(&rings[0], u32::try_from(at).unwrap());
            let rows = rows_out(&out[at]);
            rings[0].post_send(round, rows, &Uninterrupted).unwrap()
        })
        .collect();
    // Nobody has asked for the plans yet.
    assert_eq!(
        received[0].wait(SOON, &Uninterrupted).unwrap(),
        (1, ROWS_MAX)
    );
    assert_eq!(
        received[1].wait(SOON, &Uninterrupted).unwrap(),
        (2, ROWS_MAX)
    );
    assert!(received[0].is_ready() && sent.iter().all(|it| it.wait(SOON, &Uninterrupted).is_ok()));
    assert!(bytes(&into[0]) == bytes(&out[0]) && bytes(&into[1]) == bytes(&out[1]));
    assert_eq!((take_plan(&rings[1]), take_plan(&rings[1])), (1, 2));
}

#[test]
fn a_frame_waits_for_a_credit_until_a_buffer_is_posted() {
    let rings = pair();
    let (out, into) = (buffer(), buffer());
    let round = chunk(&rings[0], 0);
    let sent = rings[0]
        .post_send(round, rows_out(&out), &Uninterrupted)
        .unwrap();
    let early = sent.wait(Some(Duration::from_millis(100)), &Uninterrupted);
    assert_eq!(early.unwrap_err().kind, Kind::Deadline);
    assert!(!sent.is_ready());
    let received = rings[1].post_receive(rows_in(&into)).unwrap();
    assert_eq!(received.wait(SOON, &Uninterrupted).unwrap().0, round);
    sent.wait(SOON, &Uninterrupted).unwrap();
}

#[test]
fn a_small_round_overtakes_a_large_one_on_the_row_lane() {
    let rings = pair();
    let (out, into) = (buffer(), buffer());
    let large = chunk(&rings[0], 0);
    let sent = rings[0]
        .post_send(large, rows_out(&out), &Uninterrupted)
        .unwrap();
    let next = plan(Op::Continue, ROWS_MAX, 1, ROWS_MAX, Returns::All);
    let small = rings[0].send_plan(&next).unwrap();
    let row = [7_u8; (WIDTH * 4) as usize];
    rings[0]
        .send_rows(small, Lent::from_slice(&row), &Uninterrupted)
        .unwrap();
    assert_eq!((take_plan(&rings[1]), take_plan(&rings[1])), (large, small));
    let mut came = [0_u8; (WIDTH * 4) as usize];
    let lent = LentMut::from_slice(&mut came);
    assert_eq!(
        rings[1].receive_rows(small, lent, &Uninterrupted).unwrap(),
        1
    );
    assert_eq!(came, row);
    assert!(!sent.is_ready(), "no buffer is posted for the large one");
    let received = rings[1].post_receive(rows_in(&into)).unwrap();
    assert_eq!(received.wait(SOON, &Uninterrupted).unwrap().0, large);
}

#[test]
fn a_buffer_that_is_taken_back_leaves_its_credit_to_the_next() {
    let rings = pair();
    let (out, gone, into) = (buffer(), buffer(), buffer());
    fill(&out, 3);
    for _ in 0..5 {
        drop(rings[1].post_receive(rows_in(&gone)).unwrap());
    }
    let round = chunk(&rings[0], 0);
    let sent = rings[0]
        .post_send(round, rows_out(&out), &Uninterrupted)
        .unwrap();
    let received = rings[1].post_receive(rows_in(&into)).unwrap();
    assert_eq!(received.wait(SOON, &Uninterrupted).unwrap().0, round);
    sent.wait(SOON, &Uninterrupted).unwrap();
    assert!(bytes(&into) == bytes(&out));
    assert!(bytes(&gone).iter().all(|byte| *byte == 0));
}

#[test]
fn a_buffer_that_waits_for_its_frame_can_be_taken_back_and_the_ring_goes_on() {
    let rings = pair();
    let (out, gone, into) = (buffer(), buffer(), buffer());
    let withdrawn = rings[1].post_receive(rows_in(&gone)).unwrap();
    let round = chunk(&rings[0], 0);
    // The thread of rank 1 has begun to wait for the header.
    assert_eq!(take_plan(&rings[1]), round);
    drop(withdrawn);
    let received = rings[1].post_receive(rows_in(&into)).unwrap();
    let sent = rings[0]
        .post_send(round, rows_out(&out), &Uninterrupted)
        .unwrap();
    assert_eq!(received.wait(SOON, &Uninterrupted).unwrap().0, round);
    sent.wait(SOON, &Uninterrupted).unwrap();
}

#[test]
fn too_small_a_buffer_and_one_too_many_are_refused_here() {
    let rings = pair();
    let (one, two, three) = (buffer(), buffer(), buffer());
    let small = AlignedBuffer::new(BYTES - 1).unwrap();
    let refused = |lent| rings[1].post_receive(lent).unwrap_err();
    assert_eq!(refused(rows_in(&small)).kind, Kind::LocalProtocol);
    let _first = rings[1].post_receive(rows_in(&one)).unwrap();
    let _second = rings[1].post_receive(rows_in(&two)).unwrap();
    assert!(
        refused(rows_in(&three))
            .text
            .contains("all 2 buffers are posted")
    );
}

#[test]
fn a_plain_receive_of_a_large_round_needs_no_posted_buffer() {
    let rings = pair();
    let (out, mut into) = (buffer(), vec![0_u8; BYTES]);
    fill(&out, 9);
    thread::scope(|scope| {
        scope.spawn(|| {
            let round = take_plan(&rings[1]);
            let lent = LentMut::from_slice(&mut into);
            rings[1].receive_rows(round, lent, &Uninterrupted).unwrap();
        });
        let round = chunk(&rings[0], 0);
        rings[0]
            .send_rows(round, rows_out(&out), &Uninterrupted)
            .unwrap();
    });
    assert!(into == bytes(&out));
}

#[test]
fn every_wait_returns_the_fate_at_once() {
    let rings = pair();
    let (out, into) = (buffer(), buffer());
    let round = chunk(&rings[0], 0);
    let sent = rings[0]
        .post_send(round, rows_out(&out), &Uninterrupted)
        .unwrap();
    let received = rings[0].post_receive(rows_in(&into)).unwrap();
    let began = Instant::now();
    let errors: Vec<LinkError> = thread::scope(|scope| {
        let waits = [&sent, &received]
            .map(|posted| scope.spawn(move || posted.wait(None, &Uninterrupted).unwrap_err()));
        rings[1].fail(stagelink_proto::Refusal::Engine, "a wheel came off");
        waits.map(|wait| wait.join().unwrap()).into()
    });
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(
        errors
            .iter()
            .all(|error| error.rank == Some(1) && error.reason == "engine")
    );
    assert!(sent.is_ready() && received.is_ready());
}

#[test]
fn a_neighbour_that_is_gone_while_a_frame_is_due_ends_every_wait() {
    let mut rings = pair();
    let into = buffer();
    let received = rings[1].post_receive(rows_in(&into)).unwrap();
    chunk(&rings[0], 0);
    take_plan(&rings[1]);
    let lead = rings.remove(0);
    drop(lead);
    let began = Instant::now();
    let error = received.wait(None, &Uninterrupted).unwrap_err();
    assert_eq!((error.rank, error.reason), (Some(0), "peer_lost"));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn an_interrupt_ends_a_wait_and_leaves_the_transfer() {
    struct Flag(AtomicBool);
    impl Interrupt for Flag {
        fn is_pending(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }
    let rings = pair();
    let (out, into) = (buffer(), buffer());
    let received = rings[1].post_receive(rows_in(&into)).unwrap();
    let began = Instant::now();
    let pending = Flag(AtomicBool::new(true));
    let error = received.wait(None, &pending).unwrap_err();
    assert_eq!(error.kind, Kind::Interrupted);
    assert!(began.elapsed() < Duration::from_millis(100));
    let round = chunk(&rings[0], 0);
    let sent = rings[0]
        .post_send(round, rows_out(&out), &Uninterrupted)
        .unwrap();
    assert_eq!(received.wait(SOON, &Uninterrupted).unwrap().0, round);
    sent.wait(SOON, &Uninterrupted).unwrap();
}

#[test]
fn the_descriptor_is_readable_while_an_end_has_not_been_told() {
    use std::os::fd::AsFd as _;
    let is_readable = |ring: &Ring| {
        let fd = ring.completions();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            fd.as_fd(),
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
    };
    let rings = pair();
    let (out, into) = (buffer(), buffer());
    let received = rings[1].post_receive(rows_in(&into)).unwrap();
    assert!(!is_readable(&rings[1]));
    let round = chunk(&rings[0], 0);
    let sent = rings[0]
        .post_send(round, rows_out(&out), &Uninterrupted)
        .unwrap();
    sent.wait(SOON, &Uninterrupted).unwrap();
    while !received.is_ready() {
        thread::yield_now();
    }
    // The buffer is ready a moment before the descriptor says so.
    let deadline = Instant::now() + Duration::from_secs(1);
    while !is_readable(&rings[1]) {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    received.wait(SOON, &Uninterrupted).unwrap();
    assert!(!is_readable(&rings[1]) && !is_readable(&rings[0]));
    rings[0].fail(stagelink_proto::Refusal::Interrupted, "enough");
    let deadline = Instant::now() + Duration::from_secs(1);
    while !is_readable(&rings[1]) {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
}

#[test]
fn a_thousand_buffers_dropped_at_random_moments_are_never_written_afterwards() {
    let rings = pair();
    let out = buffer();
    fill(&out, 5);
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    for _ in 0..1000 {
        let gone = buffer();
        let posted = rings[1].post_receive(rows_in(&gone)).unwrap();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        for _ in 0..state % 64 {
            std::hint::spin_loop();
        }
        drop(posted);
        assert!(bytes(&gone).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn taking_a_buffer_back_in_the_middle_of_its_frame_ends_the_ring_by_name() {
    let rings = pair();
    let (out, gone) = (buffer(), buffer());
    let posted = rings[1].post_receive(rows_in(&gone)).unwrap();
    let round = chunk(&rings[0], 0);
    let sent = rings[0]
        .post_send(round, rows_out(&out), &Uninterrupted)
        .unwrap();
    drop(posted);
    let kept = bytes(&gone).to_vec();
    // The frame was whole already, or it was torn and the ring says so.
    match sent.wait(SOON, &Uninterrupted) {
        Ok(_) => {}
        Err(error) => assert_eq!((error.rank, error.reason), (Some(1), "local"), "{error}"),
    }
    assert!(
        kept == bytes(&gone),
        "nothing is written once the buffer is back"
    );
}
