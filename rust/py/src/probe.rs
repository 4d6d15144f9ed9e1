//! `boundary_sockets` and `interface_of`: what the probe asks of a ring and of this machine.
//! Descriptors and names pass through; nothing is measured here.

use std::net::IpAddr;
use std::os::fd::IntoRawFd;

use pyo3::prelude::*;
use stagelink_net::probe;

use crate::errors;
use crate::ring::Ring;

/// Duplicates of the row lane's sockets, to the next rank and from the previous one.
///
/// Only to be asked for facts; the caller closes them.
#[pyfunction]
#[pyo3(signature = (ring, /))]
pub(crate) fn boundary_sockets(py: Python<'_>, ring: &Ring) -> PyResult<(i32, i32)> {
    let sockets = py.detach(|| ring.inside().boundary_sockets());
    let [next, previous] = sockets.map_err(|error| errors::to_python(py, &error))?;
    Ok((next.into_raw_fd(), previous.into_raw_fd()))
}

/// Name of this machine's interface that has the IP address; ``None`` where none has it.
#[pyfunction]
pub(crate) fn interface_of(py: Python<'_>, address: &str) -> Option<String> {
    let address: IpAddr = address.parse().ok()?;
    py.detach(|| probe::interface_of(address))
}
