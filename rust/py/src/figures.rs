//! A link's counters as Python sees them.
//!
//! It counts nothing.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stagelink_net::adapt::Reason;
use stagelink_net::ring::PeerFigures;

/// One peer's counters since the link was made.
pub(crate) fn peer_dict<'py>(py: Python<'py>, peer: &PeerFigures) -> PyResult<Bound<'py, PyDict>> {
    let (one, figures) = (PyDict::new(py), &peer.figures);
    one.set_item("rank", peer.rank)?;
    one.set_item("bytes_sent", figures.bytes_sent)?;
    one.set_item("bytes_received", figures.bytes_received)?;
    one.set_item("frames_sent", figures.frames_sent)?;
    one.set_item("frames_received", figures.frames_received)?;
    one.set_item("seconds_waited", figures.seconds_waited)?;
    one.set_item("wait", wait_dict(py, peer)?)?;
    Ok(one)
}

/// How the waits for one peer were spent, and what was last decided about them.
fn wait_dict<'py>(py: Python<'py>, peer: &PeerFigures) -> PyResult<Bound<'py, PyDict>> {
    let (one, waits) = (PyDict::new(py), &peer.figures.waits);
    one.set_item("strategy", peer.strategy.name())?;
    one.set_item("seconds_slept", waits.seconds_slept)?;
    one.set_item("seconds_spun", waits.seconds_spun)?;
    one.set_item("spins_won", waits.spins_won)?;
    one.set_item("spins_in_vain", waits.spins_in_vain)?;
    one.set_item("sleeps", waits.sleeps)?;
    one.set_item("expected_seconds", waits.expected_seconds)?;
    one.set_item("margin_seconds", waits.margin_seconds)?;
    one.set_item("asleep_because", waits.asleep.map(Reason::name))?;
    Ok(one)
}
