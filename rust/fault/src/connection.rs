//! One connection through the proxy: what its thread and the control share, and its beginning.
//!
//! It moves no bytes; `relay` does.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::command::{Command, CommandError, Direction};
use crate::draw::Draw;
use crate::lane::Lane;
use crate::limits::{DIAL_LIMIT, DIAL_PAUSE};
use crate::proxy::Reached;
use crate::relay::{Relay, reset, timespec};
use crate::status::ConnectionStatus;
use crate::wake::Wake;

const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

/// What the thread of a connection shares with the control.
#[derive(Debug)]
pub(crate) struct Connection {
    id: u64,
    start: Instant,
    lanes: Mutex<[Lane; 2]>,
    wake: Wake,
    /// Threads that wait for the lanes; the thread that moves bytes lets them go first.
    wanted: AtomicUsize,
    stop: AtomicBool,
    open: AtomicBool,
}

impl Connection {
    /// A connection that has not moved anything yet; `start` is when the proxy's time begins.
    pub(crate) fn new(id: u64, seed: u64, start: Instant) -> io::Result<Self> {
        let lane = |direction| Lane::new(Draw::new(seed, id * 2 + direction as u64));
        Ok(Self {
            id,
            start,
            lanes: Mutex::new(DIRECTIONS.map(lane)),
            wake: Wake::new()?,
            wanted: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            open: AtomicBool::new(true),
        })
    }

    /// Carry out `command`; from the return on no byte passes against it.
    pub(crate) fn apply(&self, command: &Command) -> Result<Reached, CommandError> {
        let mut reached = Reached::default();
        if !self.is_open() || command.connection.is_some_and(|id| id != self.id) {
            return Ok(reached);
        }
        let now = self.now();
        let mut lanes = self.lock();
        for direction in DIRECTIONS {
            if command.is_for(direction) {
                if lanes[direction as usize].apply(command.order, now)? {
                    reached.set += 1;
                } else {
                    reached.past += 1;
                }
            }
        }
        drop(lanes);
        self.wake.set();
        Ok(reached)
    }

    /// End the thread soon, without a word to the peers.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake.set();
    }

    /// Whether the thread was told to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// What ends the thread's poll.
    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Whether the thread still moves bytes.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// What crossed so far.
    pub(crate) fn status(&self) -> ConnectionStatus {
        let lanes = self.lock();
        let [up, down] = &*lanes;
        ConnectionStatus {
            id: self.id,
            open: self.is_open(),
            up: up.status(),
            down: down.status(),
        }
    }

    /// Serve the connection until it ends; the body of its thread.
    pub(crate) fn run(&self, client: TcpStream, target: SocketAddr) {
        let result = match self.dial(target) {
            Some(server) => Relay::new(client, server).and_then(|relay| relay.run(self)),
            None => reset(client),
        };
        // A fault of the sockets themselves ends this connection and nothing else.
        drop(result);
        self.open.store(false, Ordering::SeqCst);
    }

    fn dial(&self, target: SocketAddr) -> Option<TcpStream> {
        let end = Instant::now() + DIAL_LIMIT;
        while !self.is_stopped() && Instant::now() < end {
            if let Ok(stream) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) {
                return Some(stream);
            }
            let mut wait = [PollFd::new(&self.wake, PollFlags::IN)];
            let _ = poll(&mut wait, Some(&timespec(DIAL_PAUSE)));
            self.wake.clear();
        }
        None
    }

    /// Time since the proxy started.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The lanes for the control, which must not wait for a busy stream to pause.
    fn lock(&self) -> MutexGuard<'_, [Lane; 2]> {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        lanes
    }

    /// The lanes for the thread that moves the bytes.
    pub(crate) fn lock_to_move(&self) -> MutexGuard<'_, [Lane; 2]> {
        while self.wanted.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
