//! Judges entries of `tests/vectors/manifest.json`, for the tests and for the Python binding.
//! It makes no vector; the format is that of `tests/vectors/README.md`.

mod frame;
mod handshake;
mod link;
mod plan;
mod sealed;
mod value;

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    format,
    string::{String, ToString as _},
    vec::Vec,
};

use serde_json::{Map, Value};

pub use value::fields_of;

use crate::{
    describe::{Description, OPS_ALL},
    error::{ProtocolError, Refusal},
    hello::Suite,
    layout::Layout,
    limits,
    plan::PlanBounds,
    proof::Digest,
    seal::Cipher,
};

/// The bytes of the files of an entry, by the paths that the entry names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// An entry that cannot be judged, or whose accepted value is not the one that it states.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct BadVector(pub String);

/// What judging one entry ends in: a refusal of the bytes, or an entry that makes no sense.
enum Outcome {
    Refused(ProtocolError),
    BadVector(BadVector),
}

impl From<ProtocolError> for Outcome {
    fn from(error: ProtocolError) -> Self {
        Self::Refused(error)
    }
}

impl From<BadVector> for Outcome {
    fn from(bad: BadVector) -> Self {
        Self::BadVector(bad)
    }
}

/// Makes the cipher of a sealed suite with a traffic key; `None` for a suite that is not sealed.
pub type Ciphers<'a> = &'a dyn Fn(Suite, &Digest) -> Option<Box<dyn Cipher>>;

/// Judges one entry: the refusal that the bytes raise, `None` where they are accepted.
///
/// Entries about sealed frames need [`judge_with`]. Errors: an entry of another form; an accepted
/// or named value that is not the entry's own.
pub fn judge(entry: &str, files: &Files) -> Result<Option<ProtocolError>, BadVector> {
    judge_with(entry, files, &|_, _| None)
}

/// As [`judge`], with ciphers for entries about sealed frames.
pub fn judge_with(
    entry: &str,
    files: &Files,
    ciphers: Ciphers<'_>,
) -> Result<Option<ProtocolError>, BadVector> {
    let entry: Value = serde_json::from_str(entry)
        .map_err(|error| BadVector(format!("the entry is not JSON: {error}")))?;
    let vector = Vector::new(&entry, files)?;
    let kind = entry
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let outcome = match kind {
        "frame" => frame::judge(&vector),
        "handshake" => handshake::judge(&vector),
        "layout" => judge_layout(&vector),
        "link" => link::judge(&vector),
        "plan_sequence" => plan::judge_sequence(&vector),
        "rows" => plan::judge_rows(&vector),
        "sealed" => sealed::judge_frames(&vector, ciphers),
        "sealing" => sealed::judge_sealing(&vector, ciphers),
        other => Err(BadVector(format!("no such kind of vector: {other:?}")).into()),
    };
    match outcome {
        Ok(()) => Ok(None),
        Err(Outcome::Refused(error)) => Ok(Some(error)),
        Err(Outcome::BadVector(bad)) => Err(bad),
    }
}

/// One entry: its files in order, its context and its value.
struct Vector<'a> {
    files: Vec<&'a [u8]>,
    context: Context<'a>,
    value: &'a Value,
}

impl<'a> Vector<'a> {
    fn new(entry: &'a Value, files: &'a Files) -> Result<Self, BadVector> {
        let paths = entry
            .get("files")
            .and_then(Value::as_array)
            .ok_or_else(|| missing("files"))?;
        let files = paths.iter().map(|path| {
            let path = path.as_str().unwrap_or_default();
            files
                .get(path)
                .map(Vec::as_slice)
                .ok_or_else(|| missing(path))
        });
        let context = entry.get("context").and_then(Value::as_object);
        Ok(Self {
            files: files.collect::<Result<_, _>>()?,
            context: Context(context.ok_or_else(|| missing("context"))?),
            value: entry.get("value").unwrap_or(&Value::Null),
        })
    }

    fn file(&self, index: usize) -> Result<&'a [u8], BadVector> {
        self.files
            .get(index)
            .copied()
            .ok_or_else(|| missing("a file"))
    }

    /// Compares what was decoded with every key of the entry's value.
    fn expect(&self, decoded: &Map<String, Value>) -> Result<(), BadVector> {
        for (key, expected) in self.value.as_object().into_iter().flatten() {
            if decoded.get(key) != Some(expected) {
                let got = decoded.get(key).unwrap_or(&Value::Null);
                return Err(BadVector(format!("expected {key} {expected}, got {got}")));
            }
        }
        Ok(())
    }
}

/// The context of an entry; absent keys have the defaults of the README.
struct Context<'a>(&'a Map<String, Value>);

impl<'a> Context<'a> {
    fn number<T: TryFrom<u64>>(&self, key: &str, default: u64) -> Result<T, BadVector> {
        let number = self.optional(key)?.unwrap_or(default);
        T::try_from(number).map_err(|_| BadVector(format!("{key} is out of range: {number}")))
    }

    fn optional(&self, key: &str) -> Result<Option<u64>, BadVector> {
        match self.0.get(key) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| missing(key)),
        }
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn text(&self, key: &str) -> &'a str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    fn list(&self, key: &str) -> impl Iterator<Item = &'a Value> {
        self.0
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    }

    fn object(&self, key: &str) -> Result<Self, BadVector> {
        self.0
            .get(key)
            .and_then(Value::as_object)
            .map(Self)
            .ok_or_else(|| missing(key))
    }

    fn bytes<const N: usize>(&self, key: &str) -> Result<[u8; N], BadVector> {
        from_hex(self.text(key)).ok_or_else(|| missing(key))
    }

    fn plan_bounds(&self) -> Result<PlanBounds, BadVector> {
        Ok(PlanBounds {
            streams_max: self.number("streams_max", limits::STREAMS_MAX.into())?,
            rows_max: self.number("rows_max", limits::ROWS_MAX.into())?,
            ops: self.number("ops", OPS_ALL.into())?,
            blocks: self.number("blocks", 15)?,
            draft_width: self.number("draft_width", 0)?,
        })
    }
}

fn judge_layout(vector: &Vector<'_>) -> Result<(), Outcome> {
    let world = vector.context.number("world", 3)?;
    let mut descriptions = Vec::new();
    for payload in &vector.files {
        let description = Description::parse(payload)
            .map_err(|error| BadVector(format!("a description is not good alone: {error}")))?;
        descriptions.push(description);
    }
    let Err(error) = Layout::agree(&descriptions, world) else {
        return Ok(());
    };
    let mut named = Map::new();
    named.insert(
        "rank".to_string(),
        error.rank.map_or(Value::Null, Value::from),
    );
    vector.expect(&named)?;
    Err(error.into())
}

fn missing(what: &str) -> BadVector {
    BadVector(format!("{what} is missing or of another form"))
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('?');
    bytes
        .iter()
        .flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|it| u8::try_from(it).ok())
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs
        .iter()
        .map(|&[high, low]| Some((digit(high)? << 4) | digit(low)?))
        .collect();
    if rest.is_empty() {
        bytes?.try_into().ok()
    } else {
        None
    }
}

/// A frame's bytes that end too early, as a refusal.
fn truncated() -> ProtocolError {
    Refusal::Truncated.error("the bytes end inside a frame")
}
