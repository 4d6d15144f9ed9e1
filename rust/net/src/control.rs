//! The control thread of a process: hears every control link, keeps the timers, judges who is lost,
//! and tells the ring's fate.
//!
//! It never waits for a peer and never touches rows; the main thread does both.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rustix::event::PollFd;
use stagelink_proto::Refusal;
use stagelink_proto::conversation::LinkState;
use stagelink_proto::describe::Description;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::fate::Fate as FateMessage;
use stagelink_proto::frame::Kind;
use stagelink_proto::limits;
use stagelink_proto::open::Open;
use stagelink_proto::plan::Plan;
use stagelink_proto::progress::Progress;
use stagelink_proto::ready::Ready;
use stagelink_proto::roster::Roster;

use crate::activity::{Activity, describe};
use crate::boundary::{Incoming, Outgoing};
use crate::control_link::{ControlLink, Message, Reading};
use crate::deadline::{Clock, Deadline};
use crate::error::{Kind as ErrorKind, LinkError, kind_of};
use crate::fate::Fate;
use crate::members::Members;
use crate::plans::PlanQueue;
use crate::socket::{READ, Socket, WRITE, is_ready, poll};
use crate::wake::Wake;

/// How long the fate may take to leave, so that a peer that reads nothing holds nobody up.
const SPREAD_LIMIT: Duration = Duration::from_millis(200);

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
    /// Gets the control thread out of its poll.
    pub(crate) kick: Wake,
    /// Gets the main thread out of a wait for a boot message or a bye.
    pub(crate) news: Wake,
    members: Mutex<Members>,
    star: Mutex<Star>,
    stop: AtomicBool,
}

/// The control links with what has come on them.
#[derive(Debug)]
pub(crate) struct Star {
    pub(crate) links: Vec<ControlLink>,
    pub(crate) descriptions: Vec<Description>,
    pub(crate) roster: Option<Roster>,
    pub(crate) readies: Vec<Ready>,
    pub(crate) open: Option<Open>,
    pub(crate) next_round: u64,
    /// This side has said bye.
    pub(crate) is_closing: bool,
    reading: Reading,
    interval: Duration,
    silent_intervals: u32,
    last_sent: Duration,
}

/// A fault of one control link, before it is put into words.
pub(crate) type Fault = (u32, LinkFault);

/// What is wrong with a control link.
#[derive(Debug)]
pub(crate) enum LinkFault {
    Lost,
    Broken(ProtocolError),
    Silent(Duration),
    Stalled(Duration),
    Told(FateMessage),
}

impl Shared {
    pub(crate) fn new(
        own: Description,
        reading: Reading,
        interval: Duration,
        silent_intervals: u32,
    ) -> std::io::Result<Self> {
        Ok(Self {
            rank: own.rank,
            world: own.world,
            clock: Clock::start(),
            fate: Fate::new()?,
            activity: Activity::new(),
            plans: PlanQueue::new()?,
            outgoing: Mutex::new(None),
            incoming: Mutex::new(None),
            kick: Wake::new()?,
            news: Wake::new()?,
            members: Mutex::new(Members::default()),
            star: Mutex::new(Star {
                links: Vec::new(),
                descriptions: vec![own],
                roster: None,
                readies: Vec::new(),
                open: None,
                next_round: 1,
                is_closing: false,
                reading,
                interval,
                silent_intervals,
                last_sent: Duration::ZERO,
            }),
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

    /// Ask the control thread to end; it still tells a fate that is set.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.kick.set();
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

/// A peer's broken rule as an error.
pub(crate) fn broken(name: &str, rank: u32, error: &ProtocolError, place: &str) -> LinkError {
    let kind = match kind_of(error.refusal) {
        kind @ (ErrorKind::Refused | ErrorKind::PeerLost | ErrorKind::Deadline) => kind,
        _ => ErrorKind::PeerProtocol,
    };
    let blamed = error.rank.unwrap_or(rank);
    LinkError::new(kind, error.refusal, format!("{name}: {error} {place}")).by(blamed)
}

/// The error that another rank's fate message tells.
pub(crate) fn from_message(fate: &FateMessage) -> LinkError {
    let error = LinkError::new(kind_of(fate.refusal), fate.refusal, fate.text());
    match fate.culprit {
        Some(culprit) => error.by(culprit),
        None => error,
    }
}

/// The fate message that tells an error.
pub(crate) fn to_message(error: &LinkError, reporter: u32, world: u32) -> FateMessage {
    let refusal = Refusal::from_name(error.reason).unwrap_or(Refusal::Local);
    // A peer that claimed a rank beyond the world cannot be named on the wire but in the text.
    let culprit = error.rank.filter(|rank| *rank < world);
    FateMessage::new(refusal, culprit, reporter, &error.text)
}

impl Star {
    pub(crate) fn link(&mut self, rank: u32) -> Option<&mut ControlLink> {
        self.links.iter_mut().find(|link| link.rank == rank)
    }

    /// Queue one message on every link that is still there.
    pub(crate) fn send_all(
        &mut self,
        kind: Kind,
        round: Option<u64>,
        payload: &[u8],
    ) -> Result<(), (u32, ProtocolError)> {
        for link in self.links.iter_mut().filter(|link| !link.is_gone) {
            link.send(kind, round, payload)
                .map_err(|error| (link.rank, error))?;
        }
        Ok(())
    }

    /// Send a plan under the next round number.
    pub(crate) fn send_plan(
        &mut self,
        payload: &[u8],
        now: Duration,
    ) -> Result<u64, (u32, ProtocolError)> {
        let round = self.next_round;
        self.send_all(Kind::Plan, Some(round), payload)?;
        self.next_round += 1;
        self.last_sent = now;
        Ok(round)
    }

    /// Whether every peer has said bye or is gone.
    pub(crate) fn is_quiet(&self) -> bool {
        self.links
            .iter()
            .all(|link| link.is_gone || link.state() == LinkState::Closing)
    }

    /// Whether queued bytes wait for room.
    pub(crate) fn has_unsent(&self) -> bool {
        self.links
            .iter()
            .any(|link| link.connection.has_unsent() && !link.is_gone)
    }

    pub(crate) fn set_timers(&mut self, open: Open) {
        self.interval = open.interval();
        self.silent_intervals = open.silent_intervals();
        self.open = Some(open);
    }

    fn silent_limit(&self) -> Duration {
        // Before open the other side may keep another interval: the default, if it is longer.
        let interval = match self.open {
            Some(_) => self.interval,
            None => self.interval.max(limits::KEEPALIVE_INTERVAL),
        };
        interval * self.silent_intervals
    }

    /// Send the keep-alive when it is due; returns how long nothing is due.
    fn keep_alive(&mut self, shared: &Shared) -> Result<Duration, Fault> {
        let now = shared.clock.now();
        let since = now.saturating_sub(self.last_sent);
        if let Some(left) = self
            .interval
            .checked_sub(since)
            .filter(|left| !left.is_zero())
        {
            return Ok(left);
        }
        self.send_sign_of_life(shared, now)?;
        Ok(self.interval)
    }

    /// Progress, or on a lead whose ring is open an empty plan.
    pub(crate) fn send_sign_of_life(
        &mut self,
        shared: &Shared,
        now: Duration,
    ) -> Result<(), Fault> {
        self.last_sent = now;
        if self.is_closing || shared.plans.is_ended() {
            return Ok(());
        }
        let sent = if shared.rank == 0 && self.open.is_some() {
            let mut payload = Vec::new();
            Plan::keep_alive().encode(&mut payload);
            self.send_plan(&payload, now).map(|_| ())
        } else {
            let doing = shared.activity.now();
            let limit = u32::try_from(doing.busy_limit.as_millis()).unwrap_or(u32::MAX);
            let progress = Progress {
                rank: shared.rank,
                phase: doing.phase,
                round: doing.round,
                counter: doing.counter,
                busy_limit_ms: limit,
                done: doing.done,
            };
            self.send_all(Kind::Progress, None, &progress.encode())
        };
        sent.map_err(|(rank, error)| (rank, LinkFault::Broken(error)))
    }

    /// Read every link whose descriptor was ready, then judge those that were not.
    fn hear(&mut self, shared: &Shared, ready: &[u32]) -> Result<(), Fault> {
        let now = shared.clock.now();
        for index in 0..self.links.len() {
            let rank = self.links[index].rank;
            if self.links[index].is_gone {
                continue;
            }
            self.links[index].connection.flush();
            if ready.contains(&rank) {
                self.hear_one(shared, index, now)?;
            } else {
                self.judge(index, now)?;
            }
        }
        Ok(())
    }

    fn hear_one(&mut self, shared: &Shared, index: usize, now: Duration) -> Result<(), Fault> {
        let reading = self.reading;
        let mut taken = Vec::new();
        let link = &mut self.links[index];
        let rank = link.rank;
        let closed = link
            .read(now, &reading, |message| taken.push(message))
            .map_err(|error| (rank, LinkFault::Broken(error)));
        // What came before the fault counts: a fate is the better cause.
        for message in taken {
            self.take(shared, rank, message)?;
        }
        let link = &mut self.links[index];
        if closed? {
            if link.state() != LinkState::Closing && !self.is_closing {
                return Err((rank, LinkFault::Lost));
            }
            link.is_gone = true;
            shared.news.set();
        }
        Ok(())
    }

    fn judge(&self, index: usize, now: Duration) -> Result<(), Fault> {
        let link = &self.links[index];
        if self.is_closing || link.state() == LinkState::Closing {
            return Ok(());
        }
        let limit = self.silent_limit();
        if now.saturating_sub(link.heard) > limit {
            return Err((link.rank, LinkFault::Silent(limit)));
        }
        if let Some(limit) = link.stalled(now) {
            return Err((link.rank, LinkFault::Stalled(limit)));
        }
        Ok(())
    }

    fn take(&mut self, shared: &Shared, rank: u32, message: Message) -> Result<(), Fault> {
        match message {
            Message::Progress | Message::Cancel => return Ok(()),
            Message::Plan(_, plan) if plan.is_keep_alive() => return Ok(()),
            Message::Plan(round, plan) => {
                if !shared.plans.push((round, plan)) {
                    let error = Refusal::TooManyRounds.error("expected at most 64 plans ahead");
                    return Err((rank, LinkFault::Broken(error)));
                }
                return Ok(());
            }
            Message::Fate(fate) => return Err((rank, LinkFault::Told(fate))),
            Message::Describe(description) => self.descriptions.push(*description),
            Message::Roster(roster) => self.roster = Some(roster),
            Message::Ready(ready) => self.readies.push(ready),
            Message::Open(open) => self.set_timers(open),
            Message::Bye if shared.rank != 0 => shared.plans.end(),
            Message::Bye => {}
        }
        shared.news.set();
        Ok(())
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
                let seen = last_seen(&mut star, fault.0);
                drop(star);
                shared.condemn(fault, &seen);
                break;
            }
        };
        drop(star);
        wait(shared, &sockets, patience, &mut ready);
        let mut star = shared.star();
        if let Err(fault) = star.hear(shared, &ready) {
            let seen = last_seen(&mut star, fault.0);
            drop(star);
            shared.condemn(fault, &seen);
        }
    }
    if let Some(cause) = shared.fate.cause() {
        spread(shared, cause);
    }
    shared.fate.mark_told();
}

fn last_seen(star: &mut Star, rank: u32) -> String {
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
    let mut fds = vec![
        PollFd::new(&shared.fate, READ),
        PollFd::new(&shared.kick, READ),
    ];
    fds.extend(sockets.iter().map(|(_, socket, unsent)| {
        PollFd::from_borrowed_fd(socket.as_fd(), if *unsent { READ | WRITE } else { READ })
    }));
    if poll(&mut fds, patience.min(crate::deadline::SLICE * 4)).is_ok() {
        let polled = fds[2..].iter().zip(sockets);
        ready.extend(
            polled
                .filter(|(fd, _)| is_ready(fd))
                .map(|(_, (rank, ..))| *rank),
        );
    }
    drop(fds);
    shared.kick.clear();
}

/// Tell the fate on every link, then end the links: in order where it went out, else by a reset.
fn spread(shared: &Shared, cause: &LinkError) {
    let mut payload = Vec::new();
    to_message(cause, shared.rank, shared.world).encode(&mut payload);
    let limit = Deadline::after(SPREAD_LIMIT);
    {
        let mut star = shared.star();
        for link in star.links.iter_mut().filter(|link| !link.is_gone) {
            if link.state() != LinkState::Ended {
                // A link that takes no more bytes is reset below.
                let _ = link.send(Kind::Fate, None, &payload);
            }
        }
    }
    while shared.star().has_unsent() && !limit.is_over() {
        std::thread::sleep(Duration::from_millis(2));
        for link in &mut shared.star().links {
            link.connection.flush();
        }
    }
    for link in &shared.star().links {
        end(&link.connection.socket, !link.connection.has_unsent());
    }
    end_ring(&shared.outgoing, limit, |link| {
        let said = link.say(Kind::Fate, &payload);
        end(link.socket(), said);
    });
    end_ring(&shared.incoming, limit, |link| {
        let said = link.say(Kind::Fate, &payload);
        end(link.socket(), said);
    });
    shared.news.set();
}

fn end(socket: &Socket, was_told: bool) {
    if was_told {
        socket.finish();
    } else {
        socket.reset();
    }
}

/// Use a ring link once the main thread, which the fate has woken, lets go of it.
fn end_ring<T>(link: &Mutex<Option<T>>, limit: Deadline, mut tell: impl FnMut(&mut T)) {
    loop {
        match link.try_lock() {
            Ok(mut guard) => {
                if let Some(link) = guard.as_mut() {
                    tell(link);
                }
                return;
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                if let Some(link) = poisoned.into_inner().as_mut() {
                    tell(link);
                }
                return;
            }
            Err(TryLockError::WouldBlock) if limit.is_over() => return,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
