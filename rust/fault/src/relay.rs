//! Moves the bytes of one connection between its two sockets as its lanes say.
//!
//! It decides nothing about faults; the lanes do.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use crate::connection::Connection;
use crate::faults::Ending;
use crate::lane::{Lane, Next};
use crate::limits::{CLOSE_GRACE, READ_BYTES_MAX};

/// The two sockets: of the side that dialled, and of the target. Lane `i` reads from socket `i`
/// and writes to the other.
pub(crate) struct Relay {
    sockets: [TcpStream; 2],
    /// Whether the last write of lane `i` found its receiver's buffer full.
    blocked: [bool; 2],
    scratch: Vec<u8>,
    /// Set once both directions were ended in order: when the sockets close.
    closes_at: Option<Duration>,
}

/// Whether there is more to do.
#[derive(PartialEq, Eq)]
enum Step {
    Moved,
    Waits,
    Over,
}

impl Relay {
    /// Both sockets stop waiting and stop collecting small writes.
    pub(crate) fn new(client: TcpStream, server: TcpStream) -> io::Result<Self> {
        let sockets = [client, server];
        for socket in &sockets {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
        }
        Ok(Self {
            sockets,
            blocked: [false; 2],
            scratch: vec![0; READ_BYTES_MAX],
            closes_at: None,
        })
    }

    /// Move bytes until the connection ends or is stopped.
    pub(crate) fn run(mut self, connection: &Connection) -> io::Result<()> {
        while !connection.is_stopped() {
            let mut lanes = connection.lock_to_move();
            let now = connection.now();
            let mut wait: Option<Duration> = self.closes_at;
            let mut moved = false;
            for index in 0..2 {
                moved |= self.read(&mut lanes[index], index, now);
                match self.write(&mut lanes, index, now, &mut wait) {
                    Step::Moved => moved = true,
                    Step::Waits => {}
                    Step::Over => {
                        drop(lanes);
                        return self.reset();
                    }
                }
            }
            let ended = lanes.iter().all(Lane::has_ended);
            let late = self.closes_at.is_some_and(|at| at <= now);
            if late || lanes.iter().all(Lane::is_over) && (self.closes_at.is_none() || ended) {
                return Ok(());
            }
            if !moved {
                let rooms = lanes.each_ref().map(|lane| lane.room() > 0);
                drop(lanes);
                self.wait(connection, rooms, wait.map(|at| at.saturating_sub(now)))?;
            }
        }
        Ok(())
    }

    /// Read once for lane `index`; true when something came.
    fn read(&mut self, lane: &mut Lane, index: usize, now: Duration) -> bool {
        let room = lane.room();
        if room == 0 {
            return false;
        }
        match self.sockets[index].read(&mut self.scratch[..room]) {
            Ok(0) => lane.take_end(Ending::HalfClose, now),
            Ok(count) => lane.take(&mut self.scratch[..count], now),
            Err(error) if is_temporary(&error) => return false,
            Err(_) => lane.take_end(Ending::Reset, now),
        }
        true
    }

    /// Write what lane `index` has due, and make `wait` the moment of what comes next.
    fn write(
        &mut self,
        lanes: &mut [Lane; 2],
        index: usize,
        now: Duration,
        wait: &mut Option<Duration>,
    ) -> Step {
        let lane = &mut lanes[index];
        let mut receiver = &self.sockets[1 - index];
        self.blocked[index] = false;
        match lane.next(now) {
            Next::Idle => Step::Waits,
            Next::Until(at) => {
                *wait = Some(wait.map_or(at, |other| other.min(at)));
                Step::Waits
            }
            Next::Write(bytes) => match receiver.write(bytes) {
                Ok(count) => {
                    lane.wrote(count, now);
                    Step::Moved
                }
                Err(error) if is_temporary(&error) => {
                    self.blocked[index] = true;
                    Step::Waits
                }
                Err(_) => {
                    lane.lose_receiver();
                    Step::Moved
                }
            },
            Next::End(Ending::Reset) => Step::Over,
            Next::End(Ending::Close) => {
                self.close(lanes, now);
                Step::Moved
            }
            Next::End(Ending::HalfClose | Ending::BlackHole) => {
                // A receiver that has gone already needs no end.
                let _ = receiver.shutdown(Shutdown::Write);
                Step::Moved
            }
        }
    }

    /// End both directions in order, and close the sockets a little later.
    fn close(&mut self, lanes: &mut [Lane; 2], now: Duration) {
        for (lane, socket) in lanes.iter_mut().zip(&self.sockets) {
            lane.lose_receiver();
            let _ = socket.shutdown(Shutdown::Write);
        }
        self.closes_at = Some(now + CLOSE_GRACE);
    }

    fn reset(self) -> io::Result<()> {
        let [client, server] = self.sockets;
        let first = reset(client);
        reset(server)?;
        first
    }

    /// Wait until a socket can do what its lanes want, something is due, or a command came.
    fn wait(
        &self,
        connection: &Connection,
        rooms: [bool; 2],
        limit: Option<Duration>,
    ) -> io::Result<()> {
        // A socket that nobody wants anything of is left out: poll would report its hang-up again
        // and again.
        let mut entries = vec![PollFd::new(connection.wake(), PollFlags::IN)];
        for (index, socket) in self.sockets.iter().enumerate() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, rooms[index]);
            flags.set(PollFlags::OUT, self.blocked[1 - index]);
            if !flags.is_empty() {
                entries.push(PollFd::from_borrowed_fd(socket.as_fd(), flags));
            }
        }
        match poll(&mut entries, limit.map(timespec).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {
                connection.wake().clear();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Close with RST: whatever is unsent or unread is thrown away.
pub(crate) fn reset(socket: TcpStream) -> io::Result<()> {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
    drop(socket);
    Ok(())
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}
