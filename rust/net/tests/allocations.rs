//! After boot nothing is allocated for a frame: counted by this build's own allocator.

#![allow(
    unsafe_code,
    missing_docs,
    reason = "an allocator and lent memory are unsafe by their nature"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stagelink_net::buffers::AlignedBuffer;
use stagelink_net::lent::{Lent, LentMut};
use stagelink_net::ring::Ring;
use stagelink_net::wait::Uninterrupted;
use stagelink_proto::plan::{Entry, Op, Plan, PlanBounds, PlanParts, Returns};

mod support;

use support::{ROWS_MAX, WIDTH, open_ring};

/// Counts every allocation of every thread while it is switched on.
struct Counting;

static IS_ON: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);

fn note(layout: Layout) {
    if IS_ON.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
        LARGEST.fetch_max(layout.size() as u64, Ordering::Relaxed);
    }
}

// SAFETY: every call is the system allocator's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(layout);
        // SAFETY: as above.
        unsafe { System.realloc(start, layout, size) }
    }
}

/// Plans that may be queued for the first time after warming; a thousand rounds are counted.
const PLANS_BROUGHT_MAX: u64 = 8;
/// A small plan's columns.
const ENTRIES_BYTES_MAX: u64 = 256;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: u32 = 1000;
const WARM: u32 = 100;
const BYTES: usize = (ROWS_MAX * WIDTH * 4) as usize;
const SOON: Option<Duration> = Some(Duration::from_secs(10));

/// A plan that is altered in place from round to round would need `&mut`; these are made before.
fn plans() -> Vec<Plan> {
    let mut first = 0;
    let mut accepted = 0;
    let rounds = 0..2 * (ROUNDS + WARM);
    let plan = |round: u32| {
        let (rows, returns) = if round.is_multiple_of(2) {
            (2_000, Returns::None)
        } else {
            (1, Returns::All)
        };
        let op = if round == 0 { Op::Open } else { Op::Continue };
        let entry = Entry {
            id: 1,
            op,
            first,
            rows,
            accepted,
            resume: 0,
            generation: 0,
        };
        (first, accepted) = (first + rows, rows);
        let parts = PlanParts {
            entries: vec![entry],
            returns: Some(vec![returns]),
            ..PlanParts::default()
        };
        Plan::from_parts(parts, &PlanBounds::default()).unwrap()
    };
    rounds.map(plan).collect()
}

fn rows_in(buffer: &AlignedBuffer) -> LentMut<'static> {
    // SAFETY: the buffer outlives the transfer, which is waited for.
    unsafe { LentMut::new(buffer.as_ptr(), buffer.len()) }
}

fn rows_out(buffer: &AlignedBuffer) -> Lent<'static> {
    // SAFETY: as above.
    unsafe { Lent::new(buffer.as_ptr(), buffer.len()) }
}

/// Chunks on the bulk lane and rows of one token on the row lane, in turn.
fn lead(ring: &Ring, plans: &[Plan]) {
    let buffers = [0; 2].map(|_| AlignedBuffer::new(BYTES).unwrap());
    let mut row = [1_u8; (WIDTH * 4) as usize];
    let mut back = row;
    for (at, pair) in plans.chunks(2).enumerate() {
        if at == WARM as usize {
            IS_ON.store(true, Ordering::SeqCst);
        }
        let chunk = ring.send_plan(&pair[0]).unwrap();
        let sent = ring.post_send(chunk, rows_out(&buffers[at % 2]), &Uninterrupted);
        let step = ring.send_plan(&pair[1]).unwrap();
        ring.send_rows(step, Lent::from_slice(&row), &Uninterrupted)
            .unwrap();
        for round in [chunk, step] {
            let lent = LentMut::from_slice(&mut back);
            ring.receive_rows(round, lent, &Uninterrupted).unwrap();
        }
        sent.unwrap().wait(SOON, &Uninterrupted).unwrap();
        row[0] = row[0].wrapping_add(1);
    }
    IS_ON.store(false, Ordering::SeqCst);
    ring.close();
}

fn follow(ring: &Ring) {
    let buffers = [0; 2].map(|_| AlignedBuffer::new(BYTES).unwrap());
    let mut posted = ring.post_receive(rows_in(&buffers[0])).unwrap();
    let mut row = [0_u8; (WIDTH * 4) as usize];
    let mut plan = Plan::default();
    let mut chunks = 0;
    while let Some(round) = ring.receive_plan_into(&mut plan, &Uninterrupted).unwrap() {
        if plan.rows() == 1 {
            let lent = LentMut::from_slice(&mut row);
            ring.receive_rows(round, lent, &Uninterrupted).unwrap();
            ring.send_rows(round, Lent::from_slice(&row), &Uninterrupted)
                .unwrap();
        } else {
            assert_eq!(posted.wait(SOON, &Uninterrupted).unwrap().0, round);
            chunks += 1;
            posted = ring.post_receive(rows_in(&buffers[chunks % 2])).unwrap();
            ring.send_rows(round, Lent::from_slice(&[]), &Uninterrupted)
                .unwrap();
        }
    }
    ring.close();
}

#[test]
fn a_thousand_rounds_on_both_lanes_allocate_nothing_a_round() {
    let rings = open_ring(2, |settings| {
        settings.description.context = 1 << 24;
        settings.description.kv_rows = 1 << 24;
        settings.description.buffers = 2;
    });
    let plans = plans();
    thread::scope(|scope| {
        scope.spawn(|| follow(&rings[1]));
        lead(&rings[0], &plans);
    });
    let (count, largest) = (COUNT.load(Ordering::SeqCst), LARGEST.load(Ordering::SeqCst));
    // A queue that is deeper than it was while warming brings one more plan's memory, once; that
    // depends on how the threads run, and grows with no round.
    assert!(
        count <= PLANS_BROUGHT_MAX && largest <= ENTRIES_BYTES_MAX,
        "{count} allocations, the largest had {largest} bytes"
    );
    IS_ON.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(Box::new(7_u64)));
    IS_ON.store(false, Ordering::SeqCst);
    assert_eq!(
        COUNT.load(Ordering::SeqCst),
        count + 1,
        "and what is allocated is counted"
    );
}
