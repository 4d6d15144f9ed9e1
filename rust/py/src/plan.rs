//! `Plan`: one round's plan, made from columns and read as columns.
//!
//! Rules that need stream state are judged by the ring, not here.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::plan::{Entry, Op, Plan as Inside, PlanBounds, PlanParts, Returns};

use crate::errors;

/// One round's plan (docs/protocol.md 6.7) as columns, one element an entry; immutable.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct Plan {
    inside: Inside,
}

/// The entries' columns, as Python gives them.
struct Columns {
    ids: Vec<u32>,
    ops: Vec<u32>,
    firsts: Vec<u32>,
    rows: Vec<u32>,
    accepted: Vec<u32>,
    generations: Vec<u32>,
    resumes: Option<Vec<u32>>,
}

#[pymethods]
impl Plan {
    /// Check every stateless rule of section 6.7; raises ``LocalProtocolError`` with its code.
    #[new]
    #[pyo3(signature = (*, ids, ops, firsts, rows, accepted, generations, returns, resumes = None,
        cuts = None, token_ids = None, cache_keys = None, tap_sums = false))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments, one for each column"
    )]
    fn new(
        py: Python<'_>,
        ids: Vec<u32>,
        ops: Vec<u32>,
        firsts: Vec<u32>,
        rows: Vec<u32>,
        accepted: Vec<u32>,
        generations: Vec<u32>,
        returns: Vec<u32>,
        resumes: Option<Vec<u32>>,
        cuts: Option<Vec<u32>>,
        token_ids: Option<Vec<u32>>,
        cache_keys: Option<Vec<[u8; 16]>>,
        tap_sums: bool,
    ) -> PyResult<Self> {
        let columns = Columns {
            ids,
            ops,
            firsts,
            rows,
            accepted,
            generations,
            resumes,
        };
        let made = columns.entries(returns.len()).and_then(|entries| {
            let parts = PlanParts {
                returns: (!entries.is_empty()).then_some(each(&returns, Returns::from_number)?),
                entries,
                cuts: cuts.unwrap_or_default(),
                token_ids,
                tap_sums,
                cache_keys,
            };
            // Whether a receiver implements the block is judged when the plan is sent.
            let draft_width = u32::from(tap_sums);
            Inside::from_parts(
                parts,
                &PlanBounds {
                    draft_width,
                    ..PlanBounds::default()
                },
            )
        });
        made.map(Self::of)
            .map_err(|error| errors::local(py, &error))
    }

    /// Parse a plan frame's payload; raises ``PeerProtocolError``.
    #[staticmethod]
    fn parse(py: Python<'_>, payload: &[u8]) -> PyResult<Self> {
        let bounds = PlanBounds {
            draft_width: 1,
            ..PlanBounds::default()
        };
        let parsed = Inside::parse(payload, &bounds);
        parsed
            .map(Self::of)
            .map_err(|error| errors::peer(py, &error))
    }

    /// The payload's bytes.
    fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut payload = Vec::new();
        self.inside.encode(&mut payload);
        PyBytes::new(py, &payload)
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.column(py, |entry| entry.id)
    }

    #[getter]
    fn ops<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.column(py, |entry| u32::from(entry.op.number()))
    }

    #[getter]
    fn firsts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.column(py, |entry| entry.first)
    }

    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.column(py, |entry| entry.rows)
    }

    #[getter]
    fn accepted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.column(py, |entry| entry.accepted)
    }

    #[getter]
    fn resumes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.column(py, |entry| entry.resume)
    }

    #[getter]
    fn generations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.column(py, |entry| entry.generation)
    }

    /// Per entry 1 all, 2 last, 3 none.
    #[getter]
    fn returns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let count = self.inside.entries().len();
        PyTuple::new(
            py,
            (0..count).map(|index| self.inside.returns_of(index).number()),
        )
    }

    #[getter]
    fn cuts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inside.cuts())
    }

    #[getter]
    fn token_ids<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.inside
            .token_ids()
            .map(|ids| PyTuple::new(py, ids))
            .transpose()
    }

    #[getter]
    fn cache_keys<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let keys = self.inside.cache_keys();
        keys.map(|keys| PyTuple::new(py, keys.iter().map(|key| PyBytes::new(py, key))))
            .transpose()
    }

    #[getter]
    fn tap_sums(&self) -> bool {
        self.inside.tap_sums()
    }

    #[getter]
    fn rows_total(&self) -> u32 {
        self.inside.rows()
    }

    #[getter]
    fn rows_returned(&self) -> u32 {
        self.inside.rows_returned()
    }

    /// Row offsets in the round of the rows that return, ascending.
    #[getter]
    fn returned_offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let offsets: Vec<u32> = self.inside.returned_offsets().collect();
        PyTuple::new(py, offsets)
    }

    fn __repr__(&self) -> String {
        let (streams, rows) = (self.inside.entries().len(), self.inside.rows());
        format!("Plan(streams={streams}, rows={rows})")
    }
}

impl Plan {
    pub(crate) fn of(inside: Inside) -> Self {
        Self { inside }
    }

    pub(crate) fn inside(&self) -> &Inside {
        &self.inside
    }

    fn column<'py>(
        &self,
        py: Python<'py>,
        of: impl Fn(&Entry) -> u32,
    ) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.inside.entries().iter().map(of))
    }
}

impl Columns {
    /// One entry for each id. Errors: `local` where the columns differ in length.
    fn entries(self, returns: usize) -> Result<Vec<Entry>, ProtocolError> {
        let count = self.ids.len();
        let resumes = self.resumes.unwrap_or_else(|| vec![0; count]);
        let lengths = [
            self.ops.len(),
            self.firsts.len(),
            self.rows.len(),
            self.accepted.len(),
            self.generations.len(),
            resumes.len(),
            returns,
        ];
        if lengths.iter().any(|length| *length != count) {
            return Err(Refusal::Local.error("expected one element for each id in every column"));
        }
        let ops = each(&self.ops, Op::from_number)?;
        let entries = (0..count).map(|index| Entry {
            id: self.ids[index],
            op: ops[index],
            first: self.firsts[index],
            rows: self.rows[index],
            accepted: self.accepted[index],
            resume: resumes[index],
            generation: self.generations[index],
        });
        Ok(entries.collect())
    }
}

fn each<T>(
    numbers: &[u32],
    choice: impl Fn(u8) -> Result<T, ProtocolError>,
) -> Result<Vec<T>, ProtocolError> {
    // No choice has a number beyond a byte, so 255 stands for all of them.
    numbers
        .iter()
        .map(|number| choice(u8::try_from(*number).unwrap_or(u8::MAX)))
        .collect()
}
