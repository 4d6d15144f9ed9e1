//! Frames as values and vectors as verdicts, for tests and tools.
//!
//! A running ring does not pass here.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use stagelink_net::key_file::read_key_file;
use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::frame::{FrameRules, Header, Kind};
use stagelink_proto::limits;

use crate::errors;

/// Every refusal code of docs/protocol.md 9, name to number.
#[pyfunction]
pub(crate) fn refusal_codes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let codes = PyDict::new(py);
    for refusal in Refusal::ALL {
        codes.set_item(refusal.name(), refusal.number())?;
    }
    Ok(codes)
}

/// Raise ``ConfigError`` unless ``path`` may be used as a key file (32 bytes, owner, mode, no symlink).
#[pyfunction]
pub(crate) fn check_key_file(py: Python<'_>, path: &str) -> PyResult<()> {
    read_key_file(path)
        .map(drop)
        .map_err(|error| errors::to_python(py, &error))
}

/// A header with the right checksums, and the payload.
#[pyfunction]
#[pyo3(signature = (kind, sequence, count, payload, checksum = true))]
pub(crate) fn encode_frame<'py>(
    py: Python<'py>,
    kind: &str,
    sequence: u64,
    count: u32,
    payload: &[u8],
    checksum: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let kind = Kind::from_name(kind).ok_or_else(|| {
        let error = Refusal::UnknownKind.text(format!("expected a kind's name, got {kind:?}"));
        errors::local(py, &error)
    })?;
    let header = Header::for_payload(kind, sequence, count, payload, checksum);
    let mut frame = header
        .map_err(|error| errors::local(py, &error))?
        .encode()
        .to_vec();
    frame.extend_from_slice(payload);
    Ok(PyBytes::new(py, &frame))
}

/// Parse one whole frame after the handshake.
#[pyfunction]
pub(crate) fn decode_frame<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let (header, payload) = split(data).map_err(|error| errors::peer(py, &error))?;
    let frame = PyDict::new(py);
    frame.set_item("kind", header.kind.name())?;
    frame.set_item("payload_bytes", header.payload_bytes)?;
    frame.set_item("count", header.count)?;
    frame.set_item("sequence", header.sequence)?;
    frame.set_item("payload_checksum", header.payload_checksum)?;
    frame.set_item("payload", PyBytes::new(py, payload))?;
    Ok(frame)
}

/// Judge one entry of tests/vectors/manifest.json.
#[pyfunction]
pub(crate) fn run_vector(
    _vector: &Bound<'_, PyDict>,
    _files: &Bound<'_, PyDict>,
) -> PyResult<Option<String>> {
    Err(PyValueError::new_err("not yet"))
}

fn split(data: &[u8]) -> Result<(Header, &[u8]), ProtocolError> {
    let (head, payload) = data
        .split_first_chunk::<{ limits::HEADER_BYTES }>()
        .ok_or_else(|| Refusal::Truncated.error("expected a header of 32 bytes"))?;
    let header = Header::parse(head, &FrameRules::default())?;
    let (expected, got) = (u64::from(header.payload_bytes), payload.len() as u64);
    if got < expected {
        return Err(Refusal::Truncated.numbers("payload bytes", expected, got));
    }
    if got > expected {
        return Err(Refusal::PayloadTrailing.numbers("payload bytes", expected, got));
    }
    header.check_payload(stagelink_proto::frame::checksum(payload))?;
    Ok((header, payload))
}
