//! Every interleaving of a caller, the receiving thread and a previous rank.
//! Who touches the memory, who is woken, and which credits are given; the bytes are `net`'s tests'.

use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread::{self, JoinHandle};
use stagelink_proto::describe::RowDtype;
use stagelink_proto::frame::Kind;
use stagelink_proto::rows::{Boundary, ExpectedRows, RowsFormat};
use std::os::fd::AsFd;

use crate::bulk_in::BulkIn;
use crate::slots::{Completions, Step};
use crate::stage::{Incoming, LentMut, LinkError, Memory, Peer, Shared};
use crate::wakes::{PollFd, READ, is_set, poll};

struct Ring {
    lane: Arc<BulkIn>,
    shared: Arc<Shared>,
    peer: Peer,
    thread: JoinHandle<()>,
}

impl Ring {
    fn new(buffers: u16) -> Self {
        let format = RowsFormat {
            width: 1,
            planes: 1,
            row_dtype: RowDtype::Float32,
            draft_width: 0,
        };
        let completions = Arc::new(Completions::new().unwrap());
        let lane = BulkIn::new(buffers, format, Boundary::Forward, 1, completions).unwrap();
        let (lane, shared, peer) = (Arc::new(lane), Arc::new(Shared::new()), Peer::new());
        *lane.link.lock().unwrap() = Some(Incoming {
            peer: peer.clone(),
            untold: Arc::clone(&lane.untold),
            told: 0,
        });
        let (own, of_thread) = (Arc::clone(&lane), Arc::clone(&shared));
        let thread = thread::spawn(move || own.run(&of_thread));
        Self {
            lane,
            shared,
            peer,
            thread,
        }
    }

    fn expect(&self, round: u64) {
        let frame = ExpectedRows {
            round,
            count: 1,
            payload_bytes: 4,
            kind: Kind::Rows,
        };
        self.lane.expect(frame).unwrap();
    }

    /// As `Posted::wait`: the rows, or `None` with the ring's fate.
    fn wait(&self, (slot, turn): (usize, u64)) -> Option<u64> {
        loop {
            if let Some((round, _)) = self.lane.collect(slot, turn) {
                return Some(round);
            }
            self.shared.fate.cause().map_or(Some(()), |_| None)?;
            let place = &self.lane.slots[slot];
            if matches!(place.step_of(turn), Step::Waiting | Step::Moving) {
                let mut fds = [
                    PollFd::new(place, READ),
                    PollFd::new(&self.shared.fate, READ),
                ];
                let _ = poll(&mut fds, crate::deadline::SLICE);
            } else if place.step_of(turn) != Step::Done {
                return None;
            }
        }
    }

    /// The process lets go of the ring.
    fn end(self) -> Arc<BulkIn> {
        self.shared.stop();
        self.lane.wake();
        self.thread.join().unwrap();
        self.lane
    }

    /// Credits that the previous rank has, and those that it is still to be told of.
    fn credits(lane: &BulkIn) -> u32 {
        let link = lane.link.lock().unwrap();
        link.as_ref().unwrap().told + lane.untold.load(Ordering::Acquire)
    }
}

pub(crate) fn every_interleaving(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions());
    builder.max_branches = 20_000;
    builder.check(model);
}

/// More are far slower and have found nothing: `MODEL_PREEMPTIONS` chooses.
fn preemptions() -> usize {
    std::env::var("MODEL_PREEMPTIONS").map_or(2, |text| text.parse().unwrap())
}

#[test]
fn a_posted_buffer_is_filled_once_and_read_afterwards() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let memory = Memory::new(0);
        ring.expect(7);
        let posted = ring.lane.post(LentMut::of(&memory)).unwrap();
        ring.peer.step();
        ring.peer.step();
        assert_eq!(ring.wait(posted), Some(7));
        assert_eq!(memory.read(), 7);
        assert!(!is_set(ring.lane.completions.as_fd()), "all were told");
        assert_eq!(Ring::credits(&ring.end()), 1);
    });
}

#[test]
fn a_frame_that_is_announced_after_the_buffer_still_wakes_the_thread() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let memory = Memory::new(0);
        let posted = ring.lane.post(LentMut::of(&memory)).unwrap();
        let (lane, peer) = (Arc::clone(&ring.lane), ring.peer.clone());
        let control = thread::spawn(move || {
            let frame = ExpectedRows {
                round: 7,
                count: 1,
                payload_bytes: 4,
                kind: Kind::Rows,
            };
            lane.expect(frame).unwrap();
            peer.step();
            peer.step();
        });
        assert_eq!(ring.wait(posted), Some(7));
        control.join().unwrap();
        ring.end();
    });
}

#[test]
fn a_buffer_that_is_taken_back_is_the_callers_alone_and_its_credit_is_made_good() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let memory = Memory::new(0);
        ring.expect(7);
        let (slot, turn) = ring.lane.post(LentMut::of(&memory)).unwrap();
        ring.lane.withdraw(slot, turn);
        memory.write(1);
        // Nothing of the frame had come: the next buffer takes it, on the credit of the first.
        let posted = ring.lane.post(LentMut::of(&memory)).unwrap();
        ring.peer.step();
        ring.peer.step();
        assert_eq!(ring.wait(posted), Some(7));
        assert_eq!(memory.read(), 7);
        assert_eq!(Ring::credits(&ring.end()), 1);
    });
}

#[test]
fn a_buffer_that_is_taken_back_while_its_frame_comes_is_left_before_it_is_returned() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let memory = Memory::new(0);
        ring.expect(7);
        let (slot, turn) = ring.lane.post(LentMut::of(&memory)).unwrap();
        ring.peer.step();
        ring.lane.withdraw(slot, turn);
        memory.write(1);
        assert_eq!(memory.read(), 1);
        ring.end();
    });
}

#[test]
fn the_fate_ends_every_wait_and_gives_the_memory_back() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let memory = Memory::new(0);
        ring.expect(7);
        let (slot, turn) = ring.lane.post(LentMut::of(&memory)).unwrap();
        let shared = Arc::clone(&ring.shared);
        let control = thread::spawn(move || shared.fate.set(LinkError));
        assert_eq!(ring.wait((slot, turn)), None);
        ring.lane.withdraw(slot, turn);
        memory.write(1);
        control.join().unwrap();
        assert!(ring.lane.slots.iter().all(|it| it.step() == Step::Free));
        let lane = ring.end();
        assert!(is_set(lane.completions.as_fd()), "nothing more to wait for");
    });
}

#[test]
fn a_buffer_that_is_posted_as_the_ring_ends_comes_back() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let memory = Memory::new(0);
        ring.shared.stop();
        ring.lane.wake();
        let (slot, turn) = ring.lane.post(LentMut::of(&memory)).unwrap();
        assert_eq!(ring.wait((slot, turn)), None);
        ring.lane.withdraw(slot, turn);
        memory.write(1);
        ring.end();
    });
}

#[test]
fn two_buffers_are_filled_in_the_order_in_which_they_were_posted() {
    every_interleaving(|| {
        let ring = Ring::new(2);
        let memories = [Memory::new(0), Memory::new(0)];
        ring.expect(7);
        ring.expect(9);
        let posted = memories
            .each_ref()
            .map(|it| ring.lane.post(LentMut::of(it)).unwrap());
        for _ in 0..4 {
            ring.peer.step();
        }
        assert_eq!(ring.wait(posted[0]), Some(7));
        assert_eq!(memories[0].read(), 7);
        assert_eq!(ring.wait(posted[1]), Some(9));
        assert_eq!(memories[1].read(), 9);
        assert_eq!(Ring::credits(&ring.end()), 2);
    });
}
