//! The control thread of a process: hears every control link, keeps the timers, judges who is lost,
//! and tells the ring's fate.
//!
//! It never waits for a peer and never touches rows; the main thread does both.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFd;
use stagelink_proto::Refusal;
use stagelink_proto::describe::Description;
use stagelink_proto::limits;
use stagelink_proto::rows::Boundary;

use crate::activity::{Activity, describe};
use crate::bulk_in::BulkIn;
use crate::bulk_out::BulkOut;
use crate::control_link::Reading;
use crate::deadline::Clock;
use crate::error::{Kind as ErrorKind, LinkError};
use crate::fate::Fate;
use crate::incoming::Incoming;
use crate::members::Members;
use crate::outgoing::Outgoing;
use crate::plans::PlanQueue;
use crate::slots::Completions;
use crate::socket::{READ, Socket, WRITE, is_ready, poll};
use crate::star::{Fault, LinkFault, Star};
use crate::telling::{broken, from_message, spread};
use crate::wake::Wake;

/// The fate, the kick, and every control link of a lead.
const FDS_MAX: usize = 2 + limits::WORLD_MAX as usize;

/// What both threads of a process share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) clock: Clock,
    pub(crate) fate: Fate,
    pub(crate) activity: Activity,
    pub(crate) plans: PlanQueue,
    pub(crate) outgoing: Mutex<Option<Outgoing>>,
    pub(crate) incoming: Mutex<Option<Incoming>>,
    pub(crate) bulk_out: BulkOut,
    pub(crate) bulk_in: BulkIn,
    /// Gets the control thread out of its poll.
    pub(crate) kick: Wake,
    /// Gets the main thread out of a wait for a boot message or a bye.
    pub(crate) news: Wake,
    members: Mutex<Members>,
    star: Mutex<Star>,
    stop: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        own: Description,
        reading: Reading,
        interval: Duration,
        silent_intervals: u32,
    ) -> std::io::Result<Self> {
        let completions = Arc::new(Completions::new()?);
        let boundary = if own.rank == 0 {
            Boundary::Return
        } else {
            Boundary::Forward
        };
        let format = own.rows_format();
        let (buffers, rows_max) = (own.buffers, own.rows_max);
        let bulk_out = BulkOut::new(buffers, Arc::clone(&completions))?;
        let bulk_in = BulkIn::new(buffers, format, boundary, rows_max, completions)?;
        Ok(Self {
            rank: own.rank,
            world: own.world,
            clock: Clock::start(),
            fate: Fate::new()?,
            activity: Activity::new(),
            plans: PlanQueue::new()?,
            outgoing: Mutex::new(None),
            incoming: Mutex::new(None),
            bulk_out,
            bulk_in,
            kick: Wake::new()?,
            news: Wake::new()?,
            members: Mutex::new(Members::default()),
            star: Mutex::new(Star::new(own, reading, interval, silent_intervals)),
            stop: AtomicBool::new(false),
        })
    }

    pub(crate) fn star(&self) -> MutexGuard<'_, Star> {
        self.star.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `rank 2 (macstudio 10.0.0.3:7001, layers 20..30)`.
    pub(crate) fn name(&self, rank: u32) -> String {
        self.members().name(rank)
    }

    /// `computing round 812`: what this rank does just now.
    pub(crate) fn doing(&self) -> String {
        let doing = self.activity.now();
        describe(doing.phase, doing.round)
    }

    /// Ask the threads to end; the control thread still tells a fate that is set.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.kick.set();
        self.bulk_in.wake();
        self.bulk_out.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) fn next_rank(&self) -> u32 {
        (self.rank + 1) % self.world
    }

    pub(crate) fn previous_rank(&self) -> u32 {
        (self.rank + self.world - 1) % self.world
    }

    /// Put a fault into words and make it the ring's fate.
    fn condemn(&self, (rank, fault): Fault, last_seen: &str) {
        let name = self.name(rank);
        let error = match fault {
            LinkFault::Told(fate) => from_message(&fate),
            LinkFault::Lost => LinkError::new(
                ErrorKind::PeerLost,
                Refusal::PeerLost,
                format!(
                    "{name}: connection lost while rank {} was {}; last seen {last_seen}",
                    self.rank,
                    self.doing()
                ),
            )
            .by(rank),
            LinkFault::Broken(error) => broken(&name, rank, &error, "on the control link"),
            LinkFault::Silent(limit) => LinkError::new(
                ErrorKind::Deadline,
                Refusal::Silent,
                format!(
                    "{name}: no sign of life for {:.1} s; last seen {last_seen}",
                    limit.as_secs_f64()
                ),
            )
            .by(rank)
            .after_seconds(limit.as_secs_f64()),
            LinkFault::Stuck(stuck) => {
                let (to, round) = (stuck.to, stuck.round);
                let seconds = stuck.limit.as_secs_f64();
                LinkError::new(
                    ErrorKind::Deadline,
                    Refusal::Deadline,
                    format!(
                        "{name}: its rows of round {round} did not reach rank {to} within \
                         {seconds:.1} s, although both are alive; last seen {last_seen}"
                    ),
                )
                .by(rank)
                .after_seconds(seconds)
            }
            LinkFault::Stalled(limit) => LinkError::new(
                ErrorKind::Deadline,
                Refusal::Stalled,
                format!(
                    "{name}: alive, but without progress for more than {:.1} s; \
                     last seen {last_seen}",
                    limit.as_secs_f64()
                ),
            )
            .by(rank)
            .after_seconds(limit.as_secs_f64()),
        };
        self.fate.set(error);
    }
}

/// Start the control thread.
pub(crate) fn spawn(shared: Arc<Shared>) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new()
        .name("stagelink-control".into())
        .spawn(move || run(&shared))
}

fn run(shared: &Shared) {
    let mut sockets: Vec<(u32, Arc<Socket>, bool)> = Vec::new();
    let mut ready: Vec<u32> = Vec::new();
    while shared.fate.cause().is_none() && !shared.stop.load(Ordering::Acquire) {
        let mut star = shared.star();
        let due = star.keep_alive(shared);
        sockets.clear();
        sockets.extend(star.links.iter().filter(|link| !link.is_gone).map(|link| {
            (
                link.rank,
                Arc::clone(&link.connection.socket),
                link.connection.has_unsent(),
            )
        }));
        let patience = match due {
            // Silence and stalls are judged between keep-alives too.
            Ok(due) => due
                .min(star.silent_limit() / 4)
                .max(Duration::from_millis(1)),
            Err(fault) => {
                let seen = last_seen(shared, &mut star, fault.0);
                drop(star);
                shared.condemn(fault, &seen);
                break;
            }
        };
        drop(star);
        wait(shared, &sockets, patience, &mut ready);
        let mut star = shared.star();
        if let Err(fault) = star.hear(shared, &ready) {
            let seen = last_seen(shared, &mut star, fault.0);
            drop(star);
            shared.condemn(fault, &seen);
        }
    }
    if let Some(cause) = shared.fate.cause() {
        spread(shared, cause);
    }
    shared.fate.mark_told();
}

fn last_seen(shared: &Shared, star: &mut Star, rank: u32) -> String {
    if rank == shared.rank {
        return shared.doing();
    }
    star.link(rank)
        .map(|link| link.last_seen())
        .unwrap_or_default()
}

fn wait(
    shared: &Shared,
    sockets: &[(u32, Arc<Socket>, bool)],
    patience: Duration,
    ready: &mut Vec<u32>,
) {
    ready.clear();
    // On the stack: this runs for every frame, and nothing is allocated for a frame.
    let mut places: [PollFd<'_>; FDS_MAX] =
        std::array::from_fn(|_| PollFd::new(&shared.fate, READ));
    places[1] = PollFd::new(&shared.kick, READ);
    for (place, (_, socket, unsent)) in places[2..].iter_mut().zip(sockets) {
        let flags = if *unsent { READ | WRITE } else { READ };
        *place = PollFd::from_borrowed_fd(socket.as_fd(), flags);
    }
    let fds = &mut places[..FDS_MAX.min(2 + sockets.len())];
    if poll(fds, patience.min(crate::deadline::SLICE * 4)).is_ok() {
        let polled = fds[2..].iter().zip(sockets);
        ready.extend(
            polled
                .filter(|(fd, _)| is_ready(fd))
                .map(|(_, (rank, ..))| *rank),
        );
    }
    shared.kick.clear();
}
