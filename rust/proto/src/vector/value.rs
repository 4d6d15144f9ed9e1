//! A frame's fields under the names of docs/protocol.md, as JSON.
//! It judges nothing; tools show it and vectors are compared with it.

use alloc::{
    string::{String, ToString as _},
    vec::Vec,
};

use serde_json::{Map, Value, json};

use super::hex;
use crate::{
    describe::Description, fate::Fate, figures::Figures, frame::Header, message::Message,
    plan::Plan, progress::Progress, ready::Ready, roster::Roster,
};

/// The header's fields, and those of the payload where it was parsed.
#[must_use]
pub fn fields_of(header: &Header, message: Option<&Message>) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("kind".to_string(), json!(header.kind.name()));
    fields.insert("sequence".to_string(), json!(header.sequence));
    fields.insert("count".to_string(), json!(header.count));
    fields.insert("payload_bytes".to_string(), json!(header.payload_bytes));
    let payload = match message {
        Some(Message::Describe(it)) => describe(it),
        Some(Message::Ready(it)) => ready(it),
        Some(Message::Plan(it)) => plan(it),
        Some(Message::Progress(it)) => progress(it),
        Some(Message::Fate(it)) => fate(it),
        Some(Message::Roster(it)) => roster(it),
        Some(Message::Open(it)) => json!({
            "first_round": it.first_round(),
            "keepalive_ms": it.keepalive_ms(),
            "silent_intervals": it.silent_intervals(),
        }),
        Some(Message::Tokens(ids)) => json!({"token_ids": ids}),
        Some(Message::Cancel(it)) => json!({"stream": it.stream}),
        Some(Message::Figures(it)) => figures(it),
        Some(Message::Challenge(nonce)) => json!({"nonce": hex(nonce)}),
        Some(Message::Proof(mac)) => json!({"mac": hex(mac)}),
        _ => Value::Null,
    };
    if let Value::Object(payload) = payload {
        fields.extend(payload);
    }
    fields
}

fn describe(it: &Description) -> Value {
    let properties = u32::from(it.batch_invariant) | (u32::from(it.keep) << 1);
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_string(), value);
    put("rank", json!(it.rank));
    put("world", json!(it.world));
    put("first", json!(it.first));
    put("end", json!(it.end));
    put("layers", json!(it.layers));
    put("width", json!(it.width));
    put("planes", json!(it.planes));
    put("row_dtype", json!(it.row_dtype.number()));
    put("kv_dtype", json!(it.kv_dtype.number()));
    put("sampler", json!(it.sampler.number()));
    put("chunk_rows", json!(it.chunk_rows));
    put("rows_max", json!(it.rows_max));
    put("streams_max", json!(it.streams_max));
    put("context", json!(it.context));
    put("states", json!(it.states));
    put("kv_rows", json!(it.kv_rows));
    put("draft_width", json!(it.draft_width));
    put("buffers", json!(it.buffers));
    put("rounds_in_flight_max", json!(it.rounds_in_flight_max));
    put("ops", json!(it.ops));
    put("blocks", json!(it.blocks));
    put("properties", json!(properties));
    put("weight_bytes", json!(it.weight_bytes));
    put("process", json!(it.process));
    put("port", json!(it.port));
    put("engine_version", json!(it.engine_version));
    put("backend", json!(it.backend));
    put("device", json!(it.device));
    put("host", json!(it.host));
    put("address", json!(it.address));
    put("tap_layers", json!(it.taps));
    Value::Object(fields)
}

fn ready(it: &Ready) -> Value {
    json!({
        "rank": it.rank,
        "load_ms": it.load_ms,
        "tensor_bytes_held": it.tensor_bytes_held,
        "tensor_bytes_read": it.tensor_bytes_read,
    })
}

fn figures(it: &Figures) -> Value {
    json!({
        "rank": it.rank,
        "rounds": it.rounds,
        "rows": it.rows,
        "compute_us": it.compute_us,
        "wait_us": it.wait_us,
        "bytes_sent": it.bytes_sent,
        "bytes_received": it.bytes_received,
    })
}

fn plan(it: &Plan) -> Value {
    let entries = it.entries().iter().map(|entry| {
        let op = entry.op.number();
        json!([
            entry.id,
            op,
            entry.first,
            entry.rows,
            entry.accepted,
            entry.resume,
            entry.generation
        ])
    });
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_string(), value);
    put("entries", entries.collect());
    put("cuts", json!(it.cuts()));
    put("blocks", json!(it.blocks()));
    put("rows_total", json!(it.rows()));
    put("rows_returned", json!(it.rows_returned()));
    put(
        "returned_offsets",
        it.returned_offsets().map(Value::from).collect(),
    );
    if let Some(returns) = it.returns() {
        put(
            "returns",
            returns.iter().map(|it| json!(it.number())).collect(),
        );
    }
    if let Some(ids) = it.token_ids() {
        put("token_ids", json!(ids));
    }
    if let Some(keys) = it.cache_keys() {
        put(
            "cache_keys",
            keys.iter().map(|key| json!(hex(key))).collect(),
        );
    }
    Value::Object(fields)
}

fn progress(it: &Progress) -> Value {
    json!({
        "rank": it.rank,
        "phase": it.phase.number(),
        "round": it.round,
        "counter": it.counter,
        "busy_limit_ms": it.busy_limit_ms,
        "done": it.done,
    })
}

fn fate(it: &Fate) -> Value {
    json!({
        "code": it.refusal.name(),
        "culprit": it.culprit.unwrap_or(u32::MAX),
        "reporter": it.reporter,
        "text": it.text(),
    })
}

fn roster(it: &Roster) -> Value {
    let members = it.members();
    let ranks: Vec<u32> = (0..it.world()).collect();
    json!({
        "ranks": ranks,
        "firsts": members.iter().map(|it| it.first).collect::<Vec<_>>(),
        "ends": members.iter().map(|it| it.end).collect::<Vec<_>>(),
        "ports": members.iter().map(|it| it.port).collect::<Vec<_>>(),
        "addresses": members.iter().map(|it| it.address.as_str()).collect::<Vec<_>>(),
        "hosts": members.iter().map(|it| it.host.as_str()).collect::<Vec<_>>(),
    })
}
