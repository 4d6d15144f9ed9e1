//! One rank's end of the ring: join, ready, then plans and rows until bye or the first failure.
//!
//! The calling thread drives the boundary links; the control thread (`control`) does the rest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::fate::Fate as FateMessage;
use stagelink_proto::frame::Kind;
use stagelink_proto::in_flight::InFlight;
use stagelink_proto::limits;
use stagelink_proto::open::Open;
use stagelink_proto::plan::{Plan, PlanBounds};
use stagelink_proto::progress::Phase;
use stagelink_proto::ready::Ready;
use stagelink_proto::rows::{Boundary, ExpectedRows, RowsFormat};
use stagelink_proto::streams::{Capacity, Streams};

use crate::boot::own_fault;
use crate::boundary::{Incoming, Outgoing, Trouble};
use crate::connection::LinkFigures;
use crate::control::{Shared, broken, from_message};
use crate::control_link::ControlLink;
use crate::deadline::Deadline;
use crate::error::{Kind as ErrorKind, LinkError};
use crate::lent::{Lent, LentMut};
use crate::members::Member;
use crate::plans::{PLANS_QUEUED_MAX, Taken};
use crate::socket::READ;
use crate::wait::{Interrupt, Strategy, Wait};

/// How long a call that reports the fate waits for the other ranks to be told, before its process
/// may end.
const TOLD_LIMIT: Duration = Duration::from_millis(400);

/// The link's figures for one peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerFigures {
    /// `control`, `next` or `previous`.
    pub link: &'static str,
    /// The other end's rank.
    pub rank: u32,
    /// Counters since the link was made.
    pub figures: LinkFigures,
}

/// One rank's end of a complete ring.
#[derive(Debug)]
pub struct Ring {
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Mutex<Option<JoinHandle<()>>>,
    pub(crate) terms: Terms,
    pub(crate) rounds: Mutex<Rounds>,
    /// The process that made it; a forked child must not touch the links.
    pub(crate) process: u32,
}

/// What does not change after boot.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) launch_id: [u8; 16],
    pub(crate) strategy: Strategy,
    pub(crate) keepalive: Duration,
    pub(crate) silent_intervals: u32,
    pub(crate) format: RowsFormat,
    pub(crate) bounds: PlanBounds,
}

/// The rounds that have begun and are not finished, and the streams' states.
#[derive(Debug)]
pub(crate) struct Rounds {
    streams: Streams,
    /// What is to be sent to the next rank.
    out: InFlight,
    /// What is to come from the previous rank.
    back: InFlight,
    /// The bytes of the last plan that was sent.
    payload: Vec<u8>,
    /// Memory for reading them again.
    scratch: Plan,
}

impl Rounds {
    pub(crate) fn new(capacity: Capacity, rounds_in_flight_max: u16) -> Self {
        Self {
            streams: Streams::new(capacity),
            out: InFlight::new(rounds_in_flight_max),
            back: InFlight::new(rounds_in_flight_max),
            payload: Vec::with_capacity(4096),
            scratch: Plan::default(),
        }
    }
}

impl Ring {
    /// The own rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Stages of the ring.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.shared.world
    }

    /// The id of this life of the ring.
    #[must_use]
    pub fn launch_id(&self) -> [u8; 16] {
        self.terms.launch_id
    }

    /// All ranks, in order.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.shared.members().all().to_vec()
    }

    /// Rank 0, after `ready`: what each follower said when it was loaded.
    #[must_use]
    pub fn readies(&self) -> Vec<Ready> {
        let mut readies = self.shared.star().readies.clone();
        readies.sort_by_key(|ready| ready.rank);
        readies
    }

    /// Tell that this stage is loaded; returns when the ring is open.
    ///
    /// Errors: the ring's fate; `deadline`, which is then the ring's fate.
    pub fn ready(
        &self,
        ready: Ready,
        limit: Duration,
        interrupt: &dyn Interrupt,
    ) -> Result<(), LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        self.progress(Phase::Idle, 0, Duration::ZERO, 0);
        if self.rank() != 0 {
            let mut star = self.shared.star();
            let sent = star.send_all(Kind::Ready, None, &ready.encode());
            sent.map_err(|(_, error)| own_fault(&error))?;
        }
        let deadline = Deadline::after(limit);
        loop {
            if self.advance_open()? {
                return Ok(());
            }
            let mut wait = Wait::new(&self.shared.fate, interrupt, Strategy::Block);
            let news = wait.until(
                std::os::fd::AsFd::as_fd(&self.shared.news),
                READ,
                Some(deadline),
            );
            self.shared.news.clear();
            if !news.map_err(|error| self.ended(error))? && !self.advance_open()? {
                return Err(self.condemn(self.not_opened(deadline)));
            }
        }
    }

    /// Note what the engine does; every call moves the counter that keep-alives carry.
    pub fn progress(&self, phase: Phase, round: u64, busy_limit: Duration, done: u64) {
        if self.shared.activity.enter(phase, round, busy_limit, done) {
            let now = self.shared.clock.now();
            // A link that takes nothing is judged by the control thread.
            let _ = self.shared.star().send_sign_of_life(&self.shared, now);
        }
    }

    /// Rank 0: admit the plan against the streams and send it to every follower.
    ///
    /// Errors: `LocalProtocol` with the rule's code, nothing having changed; the ring's fate.
    pub fn send_plan(&self, plan: &Plan) -> Result<u64, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        if self.rank() != 0 {
            return Err(misuse(
                "send_plan is rank 0's call; followers receive plans",
            ));
        }
        if plan.is_keep_alive() {
            return Err(misuse(
                "a plan without streams is the keep-alive, which is sent for you",
            ));
        }
        let mut rounds = self.rounds();
        let mut star = self.shared.star();
        if star.open.is_none() || star.is_closing {
            return Err(misuse("the ring is not open"));
        }
        let round = star.next_round;
        let frames = self
            .frames(round, plan)
            .map_err(|error| own_fault(&error))?;
        if frames.is_some() {
            rounds
                .out
                .check()
                .and_then(|()| rounds.back.check())
                .map_err(|e| own_fault(&e))?;
        }
        rounds
            .encode(plan, &self.terms.bounds)
            .map_err(|error| own_fault(&error))?;
        rounds
            .streams
            .admit(plan)
            .map_err(|error| own_fault(&error))?;
        let now = self.shared.clock.now();
        let sent = star.send_plan(&rounds.payload, now);
        drop(star);
        sent.map_err(|(rank, error)| {
            self.condemn(broken(
                &self.shared.name(rank),
                rank,
                &error,
                "on the control link",
            ))
        })?;
        rounds.begin(frames).map_err(|error| own_fault(&error))?;
        Ok(round)
    }

    /// Follower: the next plan with streams, or `None` after rank 0's bye.
    ///
    /// Errors: the ring's fate, and a plan that does not fit this stage's streams, which becomes it.
    pub fn receive_plan(
        &self,
        interrupt: &dyn Interrupt,
    ) -> Result<Option<(u64, Box<Plan>)>, LinkError> {
        if self.rank() == 0 {
            return Err(misuse(
                "receive_plan is a follower's call; rank 0 sends plans",
            ));
        }
        self.shared
            .activity
            .enter(Phase::Idle, 0, Duration::ZERO, 0);
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        loop {
            self.shared.fate.check().map_err(|error| self.told(error))?;
            match self.shared.plans.take() {
                Taken::Plan((round, plan)) => {
                    self.admit(round, &plan)?;
                    return Ok(Some((round, plan)));
                }
                Taken::Ended => return Ok(None),
                Taken::Nothing => {
                    let fd = std::os::fd::AsFd::as_fd(&self.shared.plans);
                    wait.again(fd, READ).map_err(|error| self.ended(error))?;
                }
            }
        }
    }

    /// Send the round's rows to the next rank; as many of the lent bytes as the plan says.
    pub fn send_rows(
        &self,
        round: u64,
        rows: Lent<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<(), LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        let frame = self.next_frame(round, rows.len(), |rounds| &rounds.out)?;
        self.shared
            .activity
            .enter(Phase::Sending, round, Duration::ZERO, 0);
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        let mut link = self.outgoing()?;
        let sent = link
            .as_mut()
            .map_or(Ok(()), |link| link.send(frame, rows, &mut wait));
        drop(link);
        sent.map_err(|trouble| self.trouble(trouble, self.next_rank(), Phase::Sending, round))?;
        self.rounds()
            .out
            .finish(round)
            .map_err(|error| own_fault(&error))?;
        // The buffer that these rows were computed from may be filled again. Another thread that
        // receives just now returns the credit itself.
        if let Ok(mut link) = self.shared.incoming.try_lock() {
            let returned = link.as_mut().map_or(Ok(()), Incoming::return_credits);
            drop(link);
            returned.map_err(|trouble| {
                self.trouble(trouble, self.previous_rank(), Phase::Sending, round)
            })?;
        }
        Ok(())
    }

    /// Receive the round's rows from the previous rank; returns how many rows came.
    pub fn receive_rows(
        &self,
        round: u64,
        mut rows: LentMut<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<u32, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        let frame = self.next_frame(round, rows.len(), |rounds| &rounds.back)?;
        self.shared
            .activity
            .enter(Phase::Receiving, round, Duration::ZERO, 0);
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        let mut link = self.incoming()?;
        let received = link
            .as_mut()
            .map_or(Ok(()), |link| link.receive(frame, &mut rows, &mut wait));
        drop(link);
        received.map_err(|trouble| {
            self.trouble(trouble, self.previous_rank(), Phase::Receiving, round)
        })?;
        self.rounds()
            .back
            .finish(round)
            .map_err(|error| own_fault(&error))?;
        Ok(frame.count)
    }

    /// Send, then receive: one hop of a decode step in one call.
    pub fn exchange(
        &self,
        round: u64,
        rows_out: Lent<'_>,
        rows_in: LentMut<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<u32, LinkError> {
        // Judged first, so that rows do not leave for which there is no room to come back.
        self.shared.fate.check().map_err(|error| self.told(error))?;
        self.next_frame(round, rows_in.len(), |rounds| &rounds.back)?;
        self.send_rows(round, rows_out, interrupt)?;
        self.receive_rows(round, rows_in, interrupt)
    }

    /// Counters of every link since it was made.
    #[must_use]
    pub fn figures(&self) -> Vec<PeerFigures> {
        let mut all: Vec<PeerFigures> = self
            .shared
            .star()
            .links
            .iter()
            .map(|link| PeerFigures {
                link: "control",
                rank: link.rank,
                figures: link.connection.figures,
            })
            .collect();
        if let Ok(Some(link)) = self.shared.outgoing.lock().as_deref() {
            let figures = link.figures();
            all.push(PeerFigures {
                link: "next",
                rank: self.next_rank(),
                figures,
            });
        }
        if let Ok(Some(link)) = self.shared.incoming.lock().as_deref() {
            let figures = link.figures();
            all.push(PeerFigures {
                link: "previous",
                rank: self.previous_rank(),
                figures,
            });
        }
        all
    }

    /// End the ring for every rank, this rank being to blame; returns when they have been told.
    pub fn fail(&self, refusal: Refusal, text: &str) {
        let name = self.shared.name(self.rank());
        let kind = crate::error::kind_of(refusal);
        let error = LinkError::new(kind, refusal, format!("{name}: {text}")).by(self.rank());
        self.shared.fate.set(error);
        self.shared.fate.wait_told(Deadline::after(TOLD_LIMIT));
    }

    /// Orderly end: rank 0 says bye to all, a follower answers; nothing after a failure or twice.
    pub fn close(&self) {
        let deadline = Deadline::after(limits::BYE_WAIT);
        let is_follower = self.rank() != 0;
        if std::process::id() != self.process || self.lock_control().is_none() {
            return;
        }
        if is_follower && !self.shared.plans.is_ended() && self.shared.fate.cause().is_none() {
            self.fail(Refusal::Interrupted, "left the ring before rank 0's bye");
        }
        if self.shared.fate.cause().is_none() {
            self.say_bye();
            while !self.is_quiet(is_follower) && !deadline.is_over() {
                let mut fds = [
                    rustix::event::PollFd::new(&self.shared.news, READ),
                    rustix::event::PollFd::new(&self.shared.fate, READ),
                ];
                let _ = crate::socket::poll(&mut fds, deadline.slice());
                self.shared.news.clear();
                if self.shared.fate.cause().is_some() {
                    break;
                }
            }
        }
        self.end_control();
        for link in &self.shared.star().links {
            link.connection.socket.finish();
        }
    }

    fn say_bye(&self) {
        let mut star = self.shared.star();
        // A follower that is gone already needs no bye.
        let _ = star.send_all(Kind::Bye, None, &[]);
        star.is_closing = true;
        drop(star);
        self.shared.kick.set();
        if let Ok(mut link) = self.shared.outgoing.try_lock()
            && let Some(link) = link.as_mut()
        {
            link.say(Kind::Bye, &[]);
        }
    }

    fn is_quiet(&self, is_follower: bool) -> bool {
        let star = self.shared.star();
        if is_follower {
            !star.has_unsent()
        } else {
            star.is_quiet()
        }
    }

    fn end_control(&self) {
        let thread = self.lock_control().take();
        self.shared.stop();
        if let Some(thread) = thread {
            // It holds no lock and waits for nobody, so it ends within its poll's slice.
            let _ = thread.join();
        }
    }

    fn lock_control(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open the ring where all are ready; true once it is open.
    fn advance_open(&self) -> Result<bool, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        let mut star = self.shared.star();
        if star.open.is_some() {
            return Ok(true);
        }
        if self.rank() != 0 || star.readies.len() < self.world() as usize - 1 {
            return Ok(false);
        }
        let millis = u32::try_from(self.terms.keepalive.as_millis()).unwrap_or(u32::MAX);
        let open = Open::new(1, millis, self.terms.silent_intervals);
        let open = open.map_err(|error| own_fault(&error))?;
        let sent = star.send_all(Kind::Open, None, &open.encode());
        sent.map_err(|(_, error)| own_fault(&error))?;
        for link in &mut star.links {
            link.opened(open.first_round());
        }
        star.next_round = open.first_round();
        star.set_timers(open);
        Ok(true)
    }

    fn not_opened(&self, deadline: Deadline) -> LinkError {
        let seconds = deadline.seconds();
        let star = self.shared.star();
        let late = (1..self.world())
            .find(|rank| star.readies.iter().all(|ready| ready.rank != *rank))
            .filter(|_| self.rank() == 0)
            .unwrap_or(0);
        let seen = star
            .links
            .iter()
            .find(|link| link.rank == late)
            .map(ControlLink::last_seen);
        drop(star);
        let name = self.shared.name(late);
        let what = if late == 0 {
            "did not open the ring"
        } else {
            "was not ready"
        };
        let seen = seen
            .map(|seen| format!("; last seen {seen}"))
            .unwrap_or_default();
        let text = format!("{name} {what} within {seconds} s{seen}");
        LinkError::new(ErrorKind::Deadline, Refusal::Deadline, text)
            .by(late)
            .after_seconds(seconds)
            .during("ready")
    }

    fn admit(&self, round: u64, plan: &Plan) -> Result<(), LinkError> {
        let mut rounds = self.rounds();
        let frames = self.frames(round, plan);
        let admitted = frames.and_then(|frames| {
            if frames.is_some() {
                rounds.out.check()?;
            }
            rounds.streams.admit(plan)?;
            rounds.begin(frames)
        });
        admitted.map_err(|error| {
            let place = format!("in the plan of round {round}");
            self.condemn(broken(&self.shared.name(0), 0, &error, &place).during("receive plan"))
        })
    }

    /// What goes out and what comes in for a plan; `None` for a plan without rows.
    fn frames(
        &self,
        round: u64,
        plan: &Plan,
    ) -> Result<Option<(ExpectedRows, ExpectedRows)>, ProtocolError> {
        let last = self.world() - 1;
        let boundary = |rank| {
            if rank == last {
                Boundary::Return
            } else {
                Boundary::Forward
            }
        };
        let format = &self.terms.format;
        let out = ExpectedRows::of_plan(round, plan, boundary(self.rank()), format)?;
        let back = ExpectedRows::of_plan(round, plan, boundary(self.previous_rank()), format)?;
        Ok(out.zip(back))
    }

    fn next_frame(
        &self,
        round: u64,
        lent: usize,
        side: impl Fn(&Rounds) -> &InFlight,
    ) -> Result<ExpectedRows, LinkError> {
        let rounds = self.rounds();
        let frame = side(&rounds).oldest().copied();
        let frame = frame.filter(|frame| frame.round == round).ok_or_else(|| {
            let due = frame.map(|frame| format!("those of round {} are due", frame.round));
            let due = due.unwrap_or_else(|| "none are due".to_owned());
            misuse(&format!("rows of round {round} cannot move now: {due}"))
        })?;
        if lent < frame.memory_bytes() {
            let (need, rows) = (frame.memory_bytes(), frame.count);
            return Err(misuse(&format!(
                "the buffer has {lent} bytes, but the {rows} rows of round {round} need {need}"
            )));
        }
        Ok(frame)
    }

    fn trouble(&self, trouble: Trouble, peer: u32, phase: Phase, round: u64) -> LinkError {
        let what = crate::activity::describe(phase, round);
        let operation = if phase == Phase::Sending {
            "send rows"
        } else {
            "receive rows"
        };
        let name = self.shared.name(peer);
        let patience = Deadline::after(limits::FATE_WAIT);
        let error = match trouble {
            Trouble::Ended(error) => return self.ended(error),
            Trouble::Torn(error) if error.kind == ErrorKind::Interrupted => {
                self.fail(Refusal::Interrupted, &format!("interrupted while {what}"));
                return error;
            }
            Trouble::Torn(error) => return self.told(error),
            Trouble::Own(error) => return own_fault(&error).during(operation),
            Trouble::Fate(payload) => match FateMessage::parse(&payload, self.world()) {
                Ok(fate) => from_message(&fate),
                Err(error) => broken(&name, peer, &error, &format!("while {what}")),
            },
            Trouble::Broken(error) => broken(&name, peer, &error, &format!("while {what}")),
            Trouble::Late(seconds) => {
                let text =
                    format!("{name}: stopped inside a frame for {seconds:.1} s while {what}");
                LinkError::new(ErrorKind::Deadline, Refusal::Deadline, text)
                    .by(peer)
                    .after_seconds(seconds)
            }
            Trouble::Bye | Trouble::Lost => {
                let how = if matches!(trouble, Trouble::Bye) {
                    "said bye"
                } else {
                    "connection lost"
                };
                let text = format!("{name}: {how} while {what}");
                let error = LinkError::new(ErrorKind::PeerLost, Refusal::PeerLost, text).by(peer);
                // Its control link tells the lead more than its boundary link tells us.
                let settled = self.shared.fate.settle(error.during(operation), patience);
                return self.told(settled);
            }
        };
        self.condemn(error.during(operation))
    }

    /// Make `error` the ring's fate unless there is one, and return the one there is.
    fn condemn(&self, error: LinkError) -> LinkError {
        let first = self.shared.fate.set(error).clone();
        self.told(first)
    }

    /// A wait that ended: for the fate, or for a signal.
    fn ended(&self, error: LinkError) -> LinkError {
        if error.kind == ErrorKind::Interrupted {
            error
        } else {
            self.told(error)
        }
    }

    /// The other ranks are told before the caller learns of the fate and maybe exits.
    fn told(&self, error: LinkError) -> LinkError {
        self.shared.fate.wait_told(Deadline::after(TOLD_LIMIT));
        error
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outgoing(&self) -> Result<MutexGuard<'_, Option<Outgoing>>, LinkError> {
        self.boundary(&self.shared.outgoing)
    }

    fn incoming(&self) -> Result<MutexGuard<'_, Option<Incoming>>, LinkError> {
        self.boundary(&self.shared.incoming)
    }

    fn boundary<'a, T>(&self, link: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, LinkError> {
        match link.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                // The control thread takes the links only to tell the fate.
                self.shared.fate.check().map_err(|error| self.told(error))?;
                Err(misuse("another thread is inside this call"))
            }
        }
    }

    fn next_rank(&self) -> u32 {
        (self.rank() + 1) % self.world()
    }

    fn previous_rank(&self) -> u32 {
        (self.rank() + self.world() - 1) % self.world()
    }
}

impl Rounds {
    /// Encode a plan, and read it as the tightest follower will.
    fn encode(&mut self, plan: &Plan, bounds: &PlanBounds) -> Result<(), ProtocolError> {
        self.payload.clear();
        plan.encode(&mut self.payload);
        self.scratch.parse_into(&self.payload, bounds)
    }

    fn begin(&mut self, frames: Option<(ExpectedRows, ExpectedRows)>) -> Result<(), ProtocolError> {
        if let Some((out, back)) = frames {
            self.out.begin(out)?;
            self.back.begin(back)?;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A forked child has the descriptors but neither the thread nor the right to end the links.
        if std::process::id() == self.process {
            self.end_control();
        }
    }
}

fn misuse(text: &str) -> LinkError {
    LinkError::new(ErrorKind::LocalProtocol, Refusal::Local, text)
}

const _: () = assert!(PLANS_QUEUED_MAX >= limits::ROUNDS_IN_FLIGHT_MAX as usize);
