//! Simulated TCP: pipes with delay, rate, small kernels, stalls, half closes, resets, flipped bits.
//! It knows no frame; a frozen process' kernel still takes and acknowledges.

use std::{collections::VecDeque, time::Duration};

use stagelink_proto::hello::Link;

use crate::draw::Draw;
use crate::options::LinkOptions;

/// How long bytes may lie that the other end does not take, its window closed or not: the kernel's
/// limit on a control link; on a boundary it stands for the lead's verdict that nothing is carried.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// A control link's kernel takes all that a frozen peer leaves unread until it counts as dead.
const CONTROL_BYTES: usize = 1 << 16;
const NEVER: Duration = Duration::from_secs(1 << 40);

/// The two pipes of one end of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ends {
    pub(crate) into: usize,
    pub(crate) out: usize,
}

/// One direction of one connection.
#[derive(Default)]
struct Pipe {
    /// What the sender's kernel has taken: when it arrives, and the bytes.
    flight: VecDeque<(Duration, Vec<u8>)>,
    flight_bytes: usize,
    arrived: VecDeque<u8>,
    /// Bytes never overtake each other.
    last: Duration,
    busy_until: Duration,
    stalled_until: Duration,
    /// When a byte last arrived.
    moved_at: Duration,
    sent: u64,
    /// Which byte is changed, and by which bits.
    flip: Option<(u64, u8)>,
    taken: u64,
    flipped_at: Option<Duration>,
    ends_at: Option<Duration>,
    /// The sender's kernel has given up.
    is_broken: bool,
    /// Nobody reads: what is sent is lost.
    has_reader: bool,
    /// The kernel took less than the writer had.
    is_blocked: bool,
    kernel_bytes: usize,
}

/// A process' listening socket.
#[derive(Default)]
struct Listener {
    is_open: bool,
    waiting: VecDeque<Ends>,
}

/// All pipes of a ring, and the chance that delays and splits them.
pub(crate) struct Wire {
    pipes: Vec<Pipe>,
    listeners: Vec<Listener>,
    /// The newest connection of each place.
    places: Vec<((Link, u32), Ends)>,
    draw: Draw,
    pub(crate) options: LinkOptions,
    /// A reader made room, so that a blocked writer must look again.
    pub(crate) made_room: bool,
}

impl Wire {
    pub(crate) fn new(draw: Draw, options: LinkOptions, world: u32) -> Self {
        let listeners = (0..world).map(|_| Listener::default()).collect();
        Self {
            pipes: Vec::new(),
            listeners,
            places: Vec::new(),
            draw,
            options,
            made_room: false,
        }
    }

    pub(crate) fn listen(&mut self, rank: u32) {
        self.listeners[rank as usize].is_open = true;
    }

    /// The process is gone; who waits at its listener sees a reset.
    pub(crate) fn stop_listening(&mut self, rank: u32, now: Duration) {
        self.listeners[rank as usize].is_open = false;
        while let Some(ends) = self.listeners[rank as usize].waiting.pop_front() {
            self.abort(ends, now, 0);
        }
    }

    /// A connection to a listener, as its dialling end; `None` where nobody listens.
    pub(crate) fn dial(&mut self, link: Link, from: u32, to: u32) -> Option<Ends> {
        if !self.listeners[to as usize].is_open {
            return None;
        }
        let there = self.pipes.len();
        let kernel_bytes = match link {
            Link::Ring => self.options.kernel_bytes,
            Link::Control => CONTROL_BYTES,
        };
        for _ in 0..2 {
            self.pipes.push(Pipe {
                has_reader: true,
                kernel_bytes,
                ..Pipe::default()
            });
        }
        let dialled = Ends {
            into: there + 1,
            out: there,
        };
        self.listeners[to as usize].waiting.push_back(Ends {
            into: there,
            out: there + 1,
        });
        self.places.retain(|(place, _)| *place != (link, from));
        self.places.push(((link, from), dialled));
        self.made_room = true;
        Some(dialled)
    }

    pub(crate) fn accept(&mut self, rank: u32) -> Option<Ends> {
        self.listeners[rank as usize].waiting.pop_front()
    }

    /// The newest connection of a place, as its dialling end.
    pub(crate) fn place(&self, link: Link, from: u32) -> Option<Ends> {
        let found = self.places.iter().find(|(place, _)| *place == (link, from));
        found.map(|(_, ends)| *ends)
    }

    /// Gives the kernel what it takes; returns how many bytes that were.
    pub(crate) fn write(&mut self, pipe: usize, bytes: &[u8], now: Duration) -> usize {
        let Self {
            pipes,
            draw,
            options,
            ..
        } = self;
        let pipe = &mut pipes[pipe];
        if pipe.ends_at.is_some() || pipe.is_broken || !pipe.has_reader {
            return bytes.len();
        }
        let room = pipe.kernel_bytes.saturating_sub(pipe.flight_bytes);
        let count = room.min(bytes.len());
        pipe.is_blocked = count < bytes.len();
        if count == 0 {
            return 0;
        }
        let mut bytes = bytes[..count].to_vec();
        if let Some((at, bits)) = pipe.flip
            && (pipe.sent..pipe.sent + count as u64).contains(&at)
        {
            bytes[usize::try_from(at - pipe.sent).unwrap()] ^= bits;
        }
        pipe.sent += count as u64;
        let takes = Duration::from_nanos(count as u64 * 1_000_000_000 / options.bytes_per_second);
        pipe.busy_until = pipe.busy_until.max(now) + takes;
        pipe.last = pipe
            .last
            .max(pipe.busy_until + draw.micros(options.delay_max_us));
        pipe.flight_bytes += count;
        pipe.flight.push_back((pipe.last, bytes));
        count
    }

    /// At most a piece of what has arrived; empty where nothing has.
    pub(crate) fn read(&mut self, pipe: usize, now: Duration) -> Vec<u8> {
        let most = 1 + self.draw.below(self.options.piece_max);
        self.read_at_most(pipe, usize::try_from(most).unwrap_or(1), now)
    }

    pub(crate) fn read_at_most(&mut self, pipe: usize, most: usize, now: Duration) -> Vec<u8> {
        self.settle(pipe, now);
        let pipe = &mut self.pipes[pipe];
        let most = pipe.arrived.len().min(most);
        let piece: Vec<u8> = pipe.arrived.drain(..most).collect();
        pipe.taken += most as u64;
        if pipe.flip.is_some_and(|(at, _)| at < pipe.taken) {
            pipe.flipped_at.get_or_insert(now);
        }
        piece
    }

    /// True once the reader has seen everything and the end.
    pub(crate) fn has_ended(&mut self, pipe: usize, now: Duration) -> bool {
        self.settle(pipe, now);
        let pipe = &self.pipes[pipe];
        let is_empty = pipe.flight.is_empty() && pipe.arrived.is_empty();
        is_empty
            && pipe
                .ends_at
                .is_some_and(|at| at.max(pipe.stalled_until) <= now)
    }

    /// The writer's kernel has given the connection up.
    pub(crate) fn is_broken(&mut self, pipe: usize, now: Duration) -> bool {
        self.settle(pipe, now);
        self.pipes[pipe].is_broken
    }

    /// The writer sends nothing more; what it sent still arrives.
    pub(crate) fn finish(&mut self, pipe: usize, now: Duration) {
        let pipe = &mut self.pipes[pipe];
        pipe.last = pipe.last.max(now);
        pipe.ends_at.get_or_insert(pipe.last);
    }

    /// This end reads nothing more.
    pub(crate) fn stop_reading(&mut self, pipe: usize) {
        let pipe = &mut self.pipes[pipe];
        pipe.has_reader = false;
        pipe.flight.clear();
        pipe.arrived.clear();
        pipe.flight_bytes = 0;
        self.made_room = true;
    }

    /// This end is gone at once; of what is under way a part still arrives.
    pub(crate) fn abort(&mut self, ends: Ends, now: Duration, tail_percent: u64) {
        self.stop_reading(ends.into);
        self.cut_tail(ends.out, tail_percent);
        self.finish(ends.out, now);
    }

    /// The connection is reset in the middle: both ends see it end.
    pub(crate) fn reset(&mut self, ends: Ends, now: Duration, tail_percent: u64) {
        for pipe in [ends.into, ends.out] {
            self.cut_tail(pipe, tail_percent);
            self.finish(pipe, now);
        }
    }

    pub(crate) fn stall(&mut self, pipe: usize, until: Option<Duration>) {
        let pipe = &mut self.pipes[pipe];
        pipe.stalled_until = pipe.stalled_until.max(until.unwrap_or(NEVER));
    }

    /// Changes one bit of the byte that leaves `after` bytes from now.
    pub(crate) fn flip(&mut self, pipe: usize, after: u64, bit: u8) {
        let pipe = &mut self.pipes[pipe];
        pipe.flip.get_or_insert((pipe.sent + after, 1 << bit));
    }

    /// When a flipped byte was read.
    pub(crate) fn flipped_at(&self, pipe: usize) -> Option<Duration> {
        self.pipes[pipe].flipped_at
    }

    /// When something happens next on any pipe.
    pub(crate) fn next_at(&self, now: Duration) -> Option<Duration> {
        let each = self
            .pipes
            .iter()
            .filter(|pipe| pipe.has_reader && !pipe.is_broken);
        each.flat_map(|pipe| {
            let front = pipe.flight.front();
            let arrives = front.map(|(at, _)| (*at).max(pipe.stalled_until));
            let gives_up = front.map(|(at, _)| pipe.moved_at.max(*at) + USER_TIMEOUT);
            let ends = pipe.ends_at.map(|at| at.max(pipe.stalled_until));
            [arrives, gives_up, ends]
        })
        .flatten()
        .filter(|&at| at > now && at < NEVER)
        .min()
    }

    /// Moves what arrives by now, as far as the receiver's window is open.
    fn settle(&mut self, pipe: usize, now: Duration) {
        let pipe = &mut self.pipes[pipe];
        let window = pipe.kernel_bytes;
        while now >= pipe.stalled_until
            && pipe.arrived.len() < window
            && let Some((_, bytes)) = pipe.flight.front_mut().filter(|(at, _)| *at <= now)
        {
            let room = window - pipe.arrived.len();
            let count = room.min(bytes.len());
            pipe.arrived.extend(bytes.drain(..count));
            pipe.flight_bytes -= count;
            pipe.moved_at = now;
            self.made_room |= std::mem::take(&mut pipe.is_blocked);
            if bytes.is_empty() {
                pipe.flight.pop_front();
            }
        }
        let oldest = pipe.flight.front().map(|(at, _)| pipe.moved_at.max(*at));
        if oldest.is_some_and(|at| now >= at + USER_TIMEOUT) {
            pipe.is_broken = true;
        }
    }

    fn cut_tail(&mut self, pipe: usize, tail_percent: u64) {
        let pipe = &mut self.pipes[pipe];
        let keep = pipe.flight_bytes as u64 * tail_percent / 100;
        let mut left = usize::try_from(keep).unwrap_or(0);
        for (_, bytes) in &mut pipe.flight {
            bytes.truncate(left);
            left -= bytes.len();
        }
        pipe.flight.retain(|(_, bytes)| !bytes.is_empty());
        pipe.flight_bytes = pipe.flight.iter().map(|(_, bytes)| bytes.len()).sum();
        pipe.last = pipe.flight.back().map_or(Duration::ZERO, |(at, _)| *at);
    }
}
