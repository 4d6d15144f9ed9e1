//! Turns the errors of the link and of the protocol into the classes of `stagelink.errors`.
//!
//! The classes are defined in Python; this file only picks one and fills its attributes.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stagelink_net::error::{Kind, LinkError};
use stagelink_proto::error::ProtocolError;

/// The Python exception for a fault of the link.
pub(crate) fn to_python(py: Python<'_>, error: &LinkError) -> PyErr {
    match build(py, error) {
        Ok(raised) | Err(raised) => raised,
    }
}

/// The Python exception for something of ours that the protocol forbids.
pub(crate) fn local(py: Python<'_>, error: &ProtocolError) -> PyErr {
    let text = error.to_string();
    to_python(
        py,
        &LinkError::new(Kind::LocalProtocol, error.refusal, text),
    )
}

/// The Python exception for bytes of a peer that the protocol forbids.
pub(crate) fn peer(py: Python<'_>, error: &ProtocolError) -> PyErr {
    let text = error.to_string();
    to_python(py, &LinkError::new(Kind::PeerProtocol, error.refusal, text))
}

fn build(py: Python<'_>, error: &LinkError) -> PyResult<PyErr> {
    let attributes = PyDict::new(py);
    attributes.set_item("reason", error.reason)?;
    attributes.set_item("rank", error.rank)?;
    attributes.set_item("operation", error.operation)?;
    attributes.set_item("seconds", error.seconds)?;
    let class = py
        .import("stagelink.errors")?
        .getattr(class_name(error.kind))?;
    Ok(PyErr::from_value(
        class.call((error.text.as_str(),), Some(&attributes))?,
    ))
}

fn class_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Config => "ConfigError",
        Kind::Refused => "RefusedError",
        Kind::LocalProtocol => "LocalProtocolError",
        Kind::PeerProtocol => "PeerProtocolError",
        // An interrupted wait raises what the signal's handler raised; this is for its absence.
        Kind::PeerLost | Kind::Interrupted => "PeerLostError",
        Kind::Deadline => "DeadlineError",
        Kind::Engine => "EngineError",
    }
}
