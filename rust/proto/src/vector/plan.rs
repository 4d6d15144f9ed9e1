//! Judges vectors of kinds `plan_sequence` and `rows`: plans against streams, rows against a plan.
//! It computes no row.

use alloc::{format, string::ToString as _};

use serde_json::{Map, Value, json};

use super::{BadVector, Outcome, Vector, frame::read_frame};
use crate::{
    describe::RowDtype,
    frame::FrameRules,
    in_flight::InFlight,
    plan::{Plan, PlanBounds},
    rows::{Boundary, ExpectedRows, RowsFormat},
    streams::{Capacity, Streams},
};

pub(super) fn judge_sequence(vector: &Vector<'_>) -> Result<(), Outcome> {
    let context = &vector.context;
    let bounds = context.plan_bounds()?;
    let mut streams = Streams::new(Capacity {
        context: context.number("context", 64)?,
        states: context.number("states", 2)?,
        kv_rows: context.number("kv_rows", 128)?,
    });
    let limited = context.0.contains_key("rounds_in_flight_max");
    let mut in_flight = InFlight::new(context.number("rounds_in_flight_max", 1)?);
    let mut verdict = Ok(());
    for (index, payload) in vector.files.iter().enumerate() {
        verdict = admit(
            payload,
            &bounds,
            &mut streams,
            limited.then_some(&mut in_flight),
        );
        if verdict.is_err() && index.saturating_add(1) < vector.files.len() {
            return Err(BadVector(format!("plan {index} is refused before the last")).into());
        }
    }
    let mut after = Map::new();
    for stream in streams.open() {
        after.insert(
            stream.id.to_string(),
            json!([stream.position(), stream.generation]),
        );
    }
    let mut decoded = Map::new();
    decoded.insert("streams".to_string(), Value::Object(after));
    vector.expect(&decoded)?;
    verdict
}

fn admit(
    payload: &[u8],
    bounds: &PlanBounds,
    streams: &mut Streams,
    in_flight: Option<&mut InFlight>,
) -> Result<(), Outcome> {
    let plan = Plan::parse(payload, bounds)?;
    match in_flight {
        Some(in_flight) if plan.rows() > 0 => {
            in_flight.check()?;
            streams.admit(&plan)?;
            let format = RowsFormat {
                width: 1,
                planes: 1,
                row_dtype: RowDtype::Float32,
                draft_width: 0,
            };
            let expected = ExpectedRows::of_plan(0, &plan, Boundary::Forward, &format)?;
            expected.map_or(Ok(()), |expected| in_flight.begin(expected))?;
        }
        _ => streams.admit(&plan)?,
    }
    Ok(())
}

pub(super) fn judge_rows(vector: &Vector<'_>) -> Result<(), Outcome> {
    let context = &vector.context;
    let plan = Plan::parse(vector.file(0)?, &context.plan_bounds()?)
        .map_err(|error| BadVector(format!("the plan is refused: {error}")))?;
    let format = RowsFormat {
        width: context.number("width", 1)?,
        planes: context.number("planes", 1)?,
        row_dtype: RowDtype::from_number(context.number("row_dtype", 1)?)
            .map_err(|error| BadVector(error.to_string()))?,
        draft_width: context.number("draft_width", 0)?,
    };
    let boundary = match (
        context.text("boundary"),
        context.number::<u8>("sampler", 1)?,
    ) {
        ("forward", _) => Boundary::Forward,
        ("return", 2) => Boundary::ReturnTokens,
        _ => Boundary::Return,
    };
    let mut in_flight = InFlight::new(1);
    let round = context.number("round", 1)?;
    if let Some(expected) = ExpectedRows::of_plan(round, &plan, boundary, &format)? {
        in_flight.begin(expected)?;
    }
    let (header, _) = read_frame(vector.file(1)?, FrameRules::default(), |header| {
        in_flight.check_rows(header)
    })?;
    let mut decoded = Map::new();
    let mut put = |name: &str, value: Value| decoded.insert(name.to_string(), value);
    put("count", json!(header.count));
    put("payload_bytes", json!(header.payload_bytes));
    let planes = 0..format.planes;
    put(
        "plane_offsets",
        planes
            .map(|it| format.plane_range(it, header.count).start)
            .collect(),
    );
    if plan.tap_sums() {
        put("taps_offset", json!(format.taps_range(header.count).start));
    }
    vector.expect(&decoded)?;
    Ok(())
}
