//! Every interleaving of a caller and the sending thread.
//! Who touches the memory and who is woken; the bytes are `net`'s tests'.

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use stagelink_proto::frame::Kind;
use stagelink_proto::rows::ExpectedRows;
use std::marker::PhantomData;
use std::os::fd::AsFd;

use crate::bulk_out::{BulkOut, Leaving};
use crate::receiving::every_interleaving;
use crate::slots::{Completions, Step};
use crate::stage::{Lent, LinkError, Memory, Outgoing, Peer, Shared};
use crate::wakes::{PollFd, READ, is_set, poll};

struct Ring {
    lane: Arc<BulkOut>,
    shared: Arc<Shared>,
    peer: Peer,
    memories: Vec<Memory>,
    thread: JoinHandle<()>,
}

impl Ring {
    fn new(buffers: u16) -> Self {
        let completions = Arc::new(Completions::new().unwrap());
        let lane = Arc::new(BulkOut::new(buffers, completions).unwrap());
        let (shared, peer) = (Arc::new(Shared::new()), Peer::new());
        let memories: Vec<Memory> = (0..2).map(|value| Memory::new(100 + value)).collect();
        *lane.link.lock().unwrap() = Some(Outgoing {
            peer: peer.clone(),
            memories: memories.clone(),
            sent: Vec::new(),
        });
        let (own, of_thread) = (Arc::clone(&lane), Arc::clone(&shared));
        let thread = thread::spawn(move || own.run(&of_thread));
        Self {
            lane,
            shared,
            peer,
            memories,
            thread,
        }
    }

    fn post(&self, memory: u64, round: u64) -> (usize, u64) {
        let frame = ExpectedRows {
            round,
            count: 1,
            payload_bytes: 4,
            kind: Kind::Rows,
        };
        let rows = Lent(memory, PhantomData);
        let checksum = 0;
        self.lane
            .post(Leaving {
                frame,
                rows,
                checksum,
            })
            .unwrap()
    }

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

    /// The process lets go of the ring; what was sent.
    fn end(self) -> Vec<u64> {
        self.shared.stop();
        self.lane.wake();
        self.thread.join().unwrap();
        let link = self.lane.link.lock().unwrap();
        link.as_ref().unwrap().sent.clone()
    }
}

#[test]
fn rows_leave_unchanged_and_the_memory_comes_back_when_they_are_gone() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let posted = ring.post(0, 7);
        ring.peer.step();
        ring.peer.step();
        assert_eq!(ring.wait(posted), Some(7));
        ring.memories[0].write(1);
        assert!(!is_set(ring.lane.completions.as_fd()), "all were told");
        assert_eq!(ring.end(), [100]);
    });
}

#[test]
fn a_value_that_is_dropped_outlasts_the_frame() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let (slot, turn) = ring.post(0, 7);
        ring.peer.step();
        ring.peer.step();
        ring.lane.outlast(slot, turn);
        ring.memories[0].write(1);
        assert_eq!(ring.lane.slots[0].step(), Step::Free);
        ring.end();
    });
}

#[test]
fn the_fate_ends_the_wait_and_the_thread_leaves_the_memory() {
    every_interleaving(|| {
        let ring = Ring::new(1);
        let (slot, turn) = ring.post(0, 7);
        ring.peer.step();
        let shared = Arc::clone(&ring.shared);
        let control = thread::spawn(move || shared.fate.set(LinkError));
        assert_eq!(ring.wait((slot, turn)), None);
        ring.lane.outlast(slot, turn);
        ring.memories[0].write(1);
        control.join().unwrap();
        ring.end();
    });
}

#[test]
fn frames_leave_in_the_order_in_which_they_were_posted_and_the_lane_is_idle_again() {
    every_interleaving(|| {
        let ring = Ring::new(2);
        let posted = [ring.post(0, 7), ring.post(1, 9)];
        for _ in 0..4 {
            ring.peer.step();
        }
        while !ring.lane.is_idle() {
            let fd = ring.lane.idle_fd();
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(fd, READ)],
                crate::deadline::SLICE,
            );
        }
        assert_eq!(ring.wait(posted[1]), Some(9));
        assert_eq!(ring.wait(posted[0]), Some(7));
        assert_eq!(ring.end(), [100, 101]);
    });
}
