//! Frames as values and vectors as verdicts, for tests and tools.
//!
//! A running ring does not pass here.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde_json::Value;
use stagelink_net::key_file::read_key_file;
use stagelink_net::seal::RecordCipher;
use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::frame::{FrameRules, Header, Kind};
use stagelink_proto::hello::Suite;
use stagelink_proto::limits;
use stagelink_proto::message::{Message, Surroundings};
use stagelink_proto::plan::PlanBounds;
use stagelink_proto::seal::Cipher;
use stagelink_proto::vector::{Files, fields_of, judge_with};

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

/// Raise ``ConfigError`` unless ``path`` may be a key file: 32 bytes, owner, mode, no link.
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
pub(crate) fn decode_frame<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let fields = decode(data).map_err(|error| errors::peer(py, &error))?;
    py.import("json")?.call_method1("loads", (fields,))
}

/// Judge one entry of tests/vectors/manifest.json.
///
/// ``ValueError`` for an entry of another form, or whose accepted value is not the one it states.
#[pyfunction]
pub(crate) fn run_vector(
    py: Python<'_>,
    vector: &Bound<'_, PyDict>,
    files: Files,
) -> PyResult<Option<&'static str>> {
    let entry: String = py
        .import("json")?
        .call_method1("dumps", (vector,))?
        .extract()?;
    let judged = judge_with(&entry, &files, &cipher)
        .map_err(|bad| PyValueError::new_err(bad.to_string()))?;
    Ok(judged.map(|error| error.refusal.name()))
}

fn cipher(suite: Suite, key: &[u8; 32]) -> Option<Box<dyn Cipher>> {
    RecordCipher::new(suite, key).map(|cipher| Box::new(cipher) as Box<dyn Cipher>)
}

/// The frame as JSON: the header's fields, and those of the payload under ``value``.
fn decode(data: &[u8]) -> Result<String, ProtocolError> {
    let (header, payload) = split(data)?;
    let around = surroundings(header.kind, payload);
    let message = Message::parse(&header, payload, &around)?;
    let mut frame = fields_of(&header, None);
    let mut value = fields_of(&header, Some(&message));
    value.retain(|name, _| !frame.contains_key(name));
    frame.insert("payload_checksum".into(), header.payload_checksum.into());
    frame.insert("value".into(), Value::Object(value));
    Ok(Value::Object(frame).to_string())
}

/// What a payload says of itself where a link would know better, so that no state is needed.
fn surroundings(kind: Kind, payload: &[u8]) -> Surroundings {
    let number = |at: usize| {
        let bytes = payload
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    };
    let plan_bounds = PlanBounds {
        draft_width: 1,
        ..PlanBounds::default()
    };
    let (rank, world) = match kind {
        Kind::Describe => (number(8), number(12)),
        Kind::Ready => (number(8), limits::WORLD_MAX),
        Kind::Progress => (number(0), limits::WORLD_MAX),
        Kind::Roster => (0, number(0)),
        _ => (1, limits::WORLD_MAX),
    };
    Surroundings {
        rank,
        world,
        layers: roster_layers(payload),
        plan_bounds,
    }
}

/// The end of a roster's last entry; 16 bytes and two texts an entry (docs/protocol.md 6.2).
fn roster_layers(payload: &[u8]) -> u32 {
    let mut rest = payload.get(8..).unwrap_or_default();
    let mut layers = 0;
    while let Some((entry, texts)) = rest.split_first_chunk::<16>() {
        layers = u32::from_le_bytes([entry[8], entry[9], entry[10], entry[11]]);
        let texts_bytes = usize::from(entry[14]) + usize::from(entry[15]);
        rest = texts.get(texts_bytes..).unwrap_or_default();
    }
    layers
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
