//! `Ring`: every call releases the interpreter lock, waits in stagelink-net, and looks for signals
//! between the slices of its wait.
//!
//! Of its own it keeps nothing but the memory of sends that nobody waits for.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use stagelink_net::error::{Kind, LinkError};
use stagelink_net::join::Settings;
use stagelink_net::ring::Ring as Inside;
use stagelink_net::wait::{Interrupt, Strategy};
use stagelink_proto::Refusal;
use stagelink_proto::figures::Figures;
use stagelink_proto::hello::Suite;
use stagelink_proto::progress::Phase;
use stagelink_proto::ready::Ready;

use crate::buffer::{Export, Held};
use crate::description::Description;
use crate::errors;
use crate::figures::peer_dict;
use crate::listener::Listener;
use crate::members::member_dict;
use crate::plan::Plan;
use crate::posted::{Orphan, Posted};

/// The longest that a number of seconds may mean, so that it fits a duration.
const SECONDS_MAX: f64 = 86_400.0 * 365.0;

/// One rank's end of the ring: made by ``join``, ended by ``close`` or by any rank's failure.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct Ring {
    inside: Inside,
    // Behind the ring itself, whose threads have ended when they are released.
    orphans: Mutex<Vec<Orphan>>,
}

/// Asks Python for pending signals, and keeps what their handler raised.
#[derive(Default)]
pub(crate) struct Signals {
    raised: Mutex<Option<PyErr>>,
}

impl Interrupt for Signals {
    fn is_pending(&self) -> bool {
        Python::attach(|py| match py.check_signals() {
            Ok(()) => false,
            Err(raised) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
                true
            }
        })
    }
}

impl Signals {
    /// Run `call` without the interpreter lock and turn its error into an exception.
    pub(crate) fn wait<T: Send>(
        py: Python<'_>,
        call: impl FnOnce(&Self) -> Result<T, LinkError> + Send,
    ) -> PyResult<T> {
        let signals = Self::default();
        py.detach(|| call(&signals)).map_err(|error| {
            let raised = signals
                .raised
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            match raised {
                Some(raised) if error.kind == Kind::Interrupted => raised,
                _ => errors::to_python(py, &error),
            }
        })
    }
}

#[pymethods]
impl Ring {
    /// Steps 1 to 5 of docs/protocol.md 5: handshakes, descriptions, roster, boundary links.
    #[staticmethod]
    #[pyo3(signature = (*, listener, lead, key_file, launch_id, fields, description,
        join_seconds = 30.0, keepalive_seconds = 2.0, silent_intervals = 3, wait = "adaptive",
        checksum = true, suite = "psk"))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments, one for each setting"
    )]
    fn join(
        py: Python<'_>,
        listener: &Listener,
        lead: Option<String>,
        key_file: String,
        launch_id: Option<[u8; 16]>,
        fields: [[u8; 32]; 8],
        description: &Description,
        join_seconds: f64,
        keepalive_seconds: f64,
        silent_intervals: u32,
        wait: &str,
        checksum: bool,
        suite: &str,
    ) -> PyResult<Self> {
        let strategy = strategy(wait).map_err(|error| errors::to_python(py, &error))?;
        let suite = Suite::from_name(suite).ok_or_else(|| {
            let text = format!(
                "suite {suite:?} is unknown, expected \"psk\", \"aes-128-gcm\" or \
                 \"chacha20-poly1305\""
            );
            errors::to_python(py, &LinkError::config("suite", text))
        })?;
        let settings = Settings {
            listener: listener
                .take()
                .map_err(|error| errors::to_python(py, &error))?,
            lead,
            key_file,
            launch_id,
            fields,
            description: description.inside(),
            join_limit: seconds(join_seconds),
            keepalive: seconds(keepalive_seconds),
            silent_intervals,
            strategy,
            suite,
            checksums: checksum,
        };
        let inside = Signals::wait(py, |signals| Inside::join(settings, signals))?;
        let orphans = Mutex::new(Vec::new());
        Ok(Self { inside, orphans })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.inside.rank()
    }

    #[getter]
    fn world(&self) -> u32 {
        self.inside.world()
    }

    #[getter]
    fn launch_id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inside.launch_id())
    }

    /// Per rank: rank, first, end, host, address; on rank 0 also backend, device, process,
    /// weight_bytes, kv_dtype, batch_invariant, keep.
    #[getter]
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let is_lead = self.inside.rank() == 0;
        let members = self.inside.members();
        let shown: PyResult<Vec<_>> = members
            .iter()
            .map(|member| member_dict(py, member, is_lead))
            .collect();
        PyList::new(py, shown?)
    }

    /// Tell that this stage is loaded; returns when rank 0 has opened the ring.
    #[pyo3(signature = (*, load_ms, bytes_held, bytes_read, seconds))]
    fn ready(
        &self,
        py: Python<'_>,
        load_ms: u32,
        bytes_held: u64,
        bytes_read: u64,
        seconds: f64,
    ) -> PyResult<()> {
        let ready = Ready {
            rank: self.inside.rank(),
            load_ms,
            tensor_bytes_held: bytes_held,
            tensor_bytes_read: bytes_read,
        };
        let limit = self::seconds(seconds);
        Signals::wait(py, |signals| self.inside.ready(ready, limit, signals))
    }

    /// Rank 0, after ``ready``: per follower rank, load_ms, bytes_held, bytes_read.
    #[getter]
    fn readies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = PyList::empty(py);
        for ready in self.inside.readies() {
            let one = PyDict::new(py);
            one.set_item("rank", ready.rank)?;
            one.set_item("load_ms", ready.load_ms)?;
            one.set_item("bytes_held", ready.tensor_bytes_held)?;
            one.set_item("bytes_read", ready.tensor_bytes_read)?;
            all.append(one)?;
        }
        Ok(all)
    }

    /// Note what the engine does; every call moves the progress counter. Raises the ring's fate.
    #[pyo3(signature = (phase, *, round = 0, busy_limit_seconds = 0.0, done = 0))]
    fn progress(
        &self,
        py: Python<'_>,
        phase: &str,
        round: u64,
        busy_limit_seconds: f64,
        done: u64,
    ) -> PyResult<()> {
        let phase = Phase::from_name(phase).map_err(|error| errors::local(py, &error))?;
        self.inside
            .progress(phase, round, seconds(busy_limit_seconds), done);
        Signals::wait(py, |_| self.inside.check())
    }

    /// Rank 0: admit the plan against the streams, send it to every follower, return its round.
    fn send_plan(&self, py: Python<'_>, plan: &Plan) -> PyResult<u64> {
        Signals::wait(py, |_| self.inside.send_plan(plan.inside()))
    }

    /// Follower: the next plan with streams and its round; ``None`` after rank 0's bye.
    fn receive_plan(&self, py: Python<'_>) -> PyResult<Option<(u64, Plan)>> {
        let mut plan = stagelink_proto::plan::Plan::default();
        let inside = &self.inside;
        let round = Signals::wait(py, |signals| inside.receive_plan_into(&mut plan, signals))?;
        Ok(round.map(|round| (round, Plan::of(plan))))
    }

    /// Send the round's rows to the next rank: header and rows in one vectored write.
    fn send_rows(&self, py: Python<'_>, round: u64, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let rows = Export::new(rows, false)?;
        let lent = rows.lend();
        Signals::wait(py, |signals| self.inside.send_rows(round, lent, signals))
    }

    /// Receive the round's rows from the previous rank into the writable buffer; how many came.
    fn receive_rows(&self, py: Python<'_>, round: u64, rows: &Bound<'_, PyAny>) -> PyResult<u32> {
        let mut rows = Export::new(rows, true)?;
        let lent = rows.lend_mut();
        Signals::wait(py, |signals| self.inside.receive_rows(round, lent, signals))
    }

    /// ``send_rows`` then ``receive_rows`` in one call: one hop of a decode step.
    fn exchange(
        &self,
        py: Python<'_>,
        round: u64,
        rows_out: &Bound<'_, PyAny>,
        rows_in: &Bound<'_, PyAny>,
    ) -> PyResult<u32> {
        let (rows_out, mut rows_in) = (Export::new(rows_out, false)?, Export::new(rows_in, true)?);
        let (lent_out, lent_in) = (rows_out.lend(), rows_in.lend_mut());
        Signals::wait(py, |signals| {
            self.inside.exchange(round, lent_out, lent_in, signals)
        })
    }

    /// Rounds with rows that may be on the ring at once; on rank 0 the least of all stages'.
    #[getter]
    fn rounds_in_flight_max(&self) -> u16 {
        self.inside.rounds_in_flight_max()
    }

    /// Hand over a writable buffer for the rows of the next round of the bulk lane.
    fn post_receive(slf: &Bound<'_, Self>, rows: &Bound<'_, PyAny>) -> PyResult<Posted> {
        let ring = slf.get();
        ring.release_orphans();
        let held = Held::new(rows, true)?;
        let posted = ring.inside.post_receive(held.rows_in());
        let posted = posted.map_err(|error| errors::to_python(slf.py(), &error))?;
        Ok(Posted::new(posted, held, slf.clone().unbind()))
    }

    /// Hand over a round's rows; a background thread sends them when there is a credit.
    fn post_send(slf: &Bound<'_, Self>, round: u64, rows: &Bound<'_, PyAny>) -> PyResult<Posted> {
        let ring = slf.get();
        ring.release_orphans();
        let held = Held::new(rows, false)?;
        let lent = held.rows_out();
        let posted = Signals::wait(slf.py(), |signals| {
            ring.inside.post_send(round, lent, signals)
        })?;
        Ok(Posted::new(posted, held, slf.clone().unbind()))
    }

    /// A descriptor that is readable while a transfer is over that ``wait`` was not told of.
    fn fileno(&self) -> i32 {
        self.inside.completions().as_raw_fd()
    }

    /// Who came to the listener during boot and was not let in, counted; empty where nobody was.
    #[getter]
    fn strangers(&self) -> &str {
        self.inside.strangers()
    }

    /// Counters since ``join``: bytes and frames sent and received, seconds waited, per link.
    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for peer in self.inside.figures() {
            let one = peer_dict(py, &peer)?;
            all.set_item(format!("{}_{}", peer.link, peer.rank), one)?;
        }
        Ok(all)
    }

    /// Follower, after rank 0's bye and before ``close``: say what this rank's loop came to.
    fn tell_figures(&self, py: Python<'_>, figures: [u64; 6]) -> PyResult<()> {
        let figures = Figures::of(self.inside.rank(), figures);
        Signals::wait(py, |_| self.inside.tell_figures(&figures))
    }

    /// Rank 0, after ``close``: what the loops of those followers came to that said so.
    #[getter]
    fn told_figures(&self) -> BTreeMap<u32, [u64; 6]> {
        let told = self.inside.told_figures();
        told.iter().map(|one| (one.rank, one.values())).collect()
    }

    /// End the ring for every rank, this rank being the culprit; ``reason`` is a refusal code.
    fn fail(&self, py: Python<'_>, reason: &str, text: &str) -> PyResult<()> {
        let refusal = Refusal::from_name(reason).ok_or_else(|| {
            let text = format!("reason {reason:?} is no refusal code of docs/protocol.md 9");
            errors::to_python(
                py,
                &LinkError::new(Kind::LocalProtocol, Refusal::Local, text),
            )
        })?;
        py.detach(|| self.inside.fail(refusal, text));
        Ok(())
    }

    /// Orderly end: rank 0 says bye to all, a follower answers; nothing after a failure or twice.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inside.close());
    }

    fn __repr__(&self) -> String {
        format!(
            "Ring(rank={}, world={})",
            self.inside.rank(),
            self.inside.world()
        )
    }
}

impl Ring {
    pub(crate) fn inside(&self) -> &Inside {
        &self.inside
    }

    /// Keep the memory of a send until it is gone.
    pub(crate) fn adopt(&self, orphan: Orphan) {
        self.lock_orphans().push(orphan);
    }

    fn release_orphans(&self) {
        let is_over = |orphan: &mut Orphan| orphan.is_over();
        // Released outside the lock: an exporter may run code of its own.
        let over: Vec<Orphan> = self.lock_orphans().extract_if(.., is_over).collect();
        drop(over);
    }

    fn lock_orphans(&self) -> MutexGuard<'_, Vec<Orphan>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn strategy(name: &str) -> Result<Strategy, LinkError> {
    let known = Strategy::ALL.into_iter().find(|one| one.name() == name);
    known.ok_or_else(|| {
        let expected = Strategy::ALL.map(Strategy::name).join(", ");
        LinkError::config(
            "wait",
            format!("wait strategy {name:?} is unknown, expected one of {expected}"),
        )
    })
}

pub(crate) fn seconds(value: f64) -> Duration {
    // A number that is none, or is negative, means no time at all.
    Duration::try_from_secs_f64(value.clamp(0.0, SECONDS_MAX)).unwrap_or_default()
}
