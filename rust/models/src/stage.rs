//! Stand-ins for what surrounds the bulk lane: a link whose frames are counted, memory that loom
//! watches, the ring's fate.
//! They move no bytes; memory is one number that a receive writes and a send reads.

use std::os::fd::{AsFd, BorrowedFd};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use stagelink_proto::Refusal;
use stagelink_proto::progress::Phase;
use stagelink_proto::rows::ExpectedRows;

use crate::wakes::{PollFd, READ, Wake, poll};

/// A caller's buffer: whoever touches it while another may is found out.
#[derive(Clone, Debug)]
pub struct Memory(pub Arc<UnsafeCell<u64>>);

impl Memory {
    pub fn new(value: u64) -> Self {
        Self(Arc::new(UnsafeCell::new(value)))
    }

    pub fn read(&self) -> u64 {
        // SAFETY: loom fails the model where this access is not alone.
        self.0.with(|value| unsafe { *value })
    }

    pub fn write(&self, value: u64) {
        // SAFETY: loom fails the model where this access is not alone.
        self.0.with_mut(|it| unsafe { *it = value });
    }
}

#[derive(Debug)]
pub struct LentMut<'a>(pub Memory, pub std::marker::PhantomData<&'a ()>);

impl LentMut<'_> {
    pub fn of(memory: &Memory) -> LentMut<'static> {
        LentMut(memory.clone(), std::marker::PhantomData)
    }

    pub(crate) fn len(&self) -> usize {
        1 << 20
    }
}

/// `Copy`, as the product's: it names the memory, which the test keeps alive.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a>(pub u64, pub std::marker::PhantomData<&'a ()>);

#[derive(Clone, Copy, Debug, Default)]
pub struct LinkFigures {}

#[derive(Clone, Debug)]
pub struct LinkError;

#[derive(Debug)]
pub enum Trouble {
    /// Nothing of the frame has moved.
    Ended(LinkError),
    /// A part of it has.
    Torn(LinkError),
    Lost,
}

pub trait Interrupt {
    fn is_pending(&self) -> bool;
}

pub enum Strategy {
    Block,
}

#[derive(Debug)]
pub struct Fate {
    is_set: AtomicBool,
    wake: Wake,
}

impl Fate {
    pub(crate) fn cause(&self) -> Option<LinkError> {
        self.is_set.load(Ordering::Acquire).then_some(LinkError)
    }

    pub fn set(&self, _: LinkError) {
        self.is_set.store(true, Ordering::Release);
        self.wake.set();
    }
}

impl AsFd for Fate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// As the product's `Wait`: a readable socket, the fate, a nudge; and after each the interrupt.
pub struct Wait<'a> {
    fate: &'a Fate,
    interrupt: &'a dyn Interrupt,
    nudge: Option<&'a Wake>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(fate: &'a Fate, interrupt: &'a dyn Interrupt, _: Strategy) -> Self {
        Self {
            fate,
            interrupt,
            nudge: None,
        }
    }

    pub(crate) fn nudged_by(mut self, nudge: &'a Wake) -> Self {
        self.nudge = Some(nudge);
        self
    }

    fn again(&self, socket: &Wake) -> Result<(), LinkError> {
        let nudge = self.nudge.map_or(self.fate.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::new(socket, READ),
            PollFd::new(self.fate, READ),
            PollFd::from_borrowed_fd(nudge, READ),
        ];
        let _ = poll(&mut fds, crate::deadline::SLICE);
        if fds[1].is_ready && self.fate.cause().is_some() {
            return Err(LinkError);
        }
        if !fds[0].is_ready
            && let Some(nudge) = self.nudge
        {
            nudge.clear();
            if self.interrupt.is_pending() {
                return Err(LinkError);
            }
        }
        Ok(())
    }
}

/// The other end of a link: bytes that it has sent, or room that it has made.
#[derive(Clone, Debug)]
pub struct Peer {
    steps: Arc<AtomicU32>,
    socket: Arc<Wake>,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            steps: Arc::new(AtomicU32::new(0)),
            socket: Arc::new(Wake::new().unwrap()),
        }
    }

    /// One more half of a frame can move.
    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::AcqRel);
        self.socket.set();
    }

    /// Takes one step as soon as there is one.
    fn take(&self, wait: &Wait<'_>) -> Result<(), LinkError> {
        loop {
            self.socket.clear();
            let steps = self.steps.load(Ordering::Acquire);
            if steps > 0 {
                self.steps.fetch_sub(1, Ordering::AcqRel);
                return Ok(());
            }
            wait.again(&self.socket)?;
        }
    }
}

impl Default for Peer {
    fn default() -> Self {
        Self::new()
    }
}

/// Frames of two halves: a receive that is left between them is torn.
#[derive(Debug)]
pub struct Incoming {
    pub peer: Peer,
    pub untold: Arc<AtomicU32>,
    pub told: u32,
}

impl Incoming {
    pub(crate) fn receive(
        &mut self,
        frame: ExpectedRows,
        rows: &mut LentMut<'_>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        self.peer.take(wait).map_err(Trouble::Ended)?;
        rows.0.write(1);
        self.peer.take(wait).map_err(Trouble::Torn)?;
        rows.0.write(frame.round);
        Ok(())
    }

    pub(crate) fn tell_posted(&mut self) -> Result<(), Trouble> {
        self.told += self.untold.swap(0, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn figures(&self) -> LinkFigures {
        LinkFigures {}
    }
}

/// Reads the memory of each frame in two halves.
#[derive(Debug)]
pub struct Outgoing {
    pub peer: Peer,
    /// By the number that a `Lent` carries.
    pub memories: Vec<Memory>,
    pub sent: Vec<u64>,
}

impl Outgoing {
    pub(crate) fn send_with(
        &mut self,
        _: ExpectedRows,
        rows: Lent<'_>,
        _: u32,
        wait: &mut Wait<'_>,
    ) -> Result<(), Trouble> {
        let memory = &self.memories[usize::try_from(rows.0).unwrap()];
        self.peer.take(wait).map_err(Trouble::Ended)?;
        let first = memory.read();
        self.peer.take(wait).map_err(Trouble::Torn)?;
        assert_eq!(first, memory.read(), "rows changed while they left");
        self.sent.push(first);
        Ok(())
    }

    pub(crate) fn figures(&self) -> LinkFigures {
        LinkFigures {}
    }
}

/// What the threads of a process share, as far as the bulk lane looks.
#[derive(Debug)]
pub struct Shared {
    pub fate: Fate,
    stop: AtomicBool,
}

impl Shared {
    pub fn new() -> Self {
        let fate = Fate {
            is_set: AtomicBool::new(false),
            wake: Wake::new().unwrap(),
        };
        Self {
            fate,
            stop: AtomicBool::new(false),
        }
    }

    /// The process lets go of the ring; the lane is woken afterwards.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(crate) const fn previous_rank(&self) -> u32 {
        0
    }

    pub(crate) const fn next_rank(&self) -> u32 {
        0
    }

    pub(crate) fn trouble(&self, _: Trouble, _: u32, _: Phase, _: u64) -> LinkError {
        LinkError
    }

    pub(crate) fn fail(&self, _: Refusal, _: &str) {
        self.fate.set(LinkError);
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self::new()
    }
}
