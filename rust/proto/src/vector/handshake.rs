//! Judges vectors of kind `handshake`: one end makes its own frames and judges the other's.
//! Deadlines and sockets are not part of it.

use alloc::{
    format,
    string::{String, ToString as _},
    vec::Vec,
};

use serde_json::{Map, Value, json};

use super::{BadVector, Context, Outcome, Vector, from_hex, hex, missing};
use crate::{
    fingerprint::Fingerprint,
    handshake::{Acceptor, Connector, Linked, Links, Proving},
    hello::{Link, Settings, Suite},
    limits::{HEADER_BYTES, IDENTITY_BYTES},
    proof::{self, Secret},
};

pub(super) fn judge(vector: &Vector<'_>) -> Result<(), Outcome> {
    let context = &vector.context;
    let own = context.object("own")?;
    let secret = Secret::from_key(&context.bytes("key")?);
    let settings = settings(context, &own)?;
    let link = Link::from_number(own.number("link", 0)?).ok_or_else(|| missing("link"))?;
    let linked = match context.text("judge") {
        "connector" => {
            let peer_rank = own.number("peer_rank", 0)?;
            let connector = Connector::new(secret.clone(), settings, link, peer_rank);
            judge_connector(vector, connector, own.bytes("nonce")?)?
        }
        "acceptor" => {
            let links = if link == Link::Ring {
                Links::Ring
            } else {
                Links::Control
            };
            let acceptor = Acceptor::new(secret.clone(), settings, links);
            judge_acceptor(vector, acceptor, own.bytes("nonce")?)?
        }
        other => return Err(BadVector(format!("no such end: {other:?}")).into()),
    };
    vector.expect(&hashes(vector, &secret, &linked)?)?;
    Ok(())
}

fn judge_connector(
    vector: &Vector<'_>,
    connector: Connector,
    nonce: [u8; 32],
) -> Result<Linked, Outcome> {
    let (greeting, hello) = connector.start(nonce)?;
    same("hello", &hello, vector.file(0)?)?;
    let (proving, proof) = greeting
        .challenge(vector.file(1)?)
        .map_err(|not| not.error)?;
    same("proof", &proof, vector.file(2)?)?;
    let Some(answer) = vector.files.get(3) else {
        return Err(proving.closed().error.into());
    };
    if let Some(header) = answer.first_chunk::<HEADER_BYTES>() {
        Proving::payload_bytes(header)?;
    }
    Ok(proving.answer(answer).map_err(|not| not.error)?)
}

fn judge_acceptor(
    vector: &Vector<'_>,
    acceptor: Acceptor,
    nonce: [u8; 32],
) -> Result<Linked, Outcome> {
    let (greeted, challenge) = acceptor
        .hello(vector.file(0)?, nonce)
        .map_err(|stranger| stranger.0)?;
    same("challenge", &challenge, vector.file(1)?)?;
    let verified = greeted
        .proof(vector.file(2)?)
        .map_err(|stranger| stranger.0)?;
    let rank = u64::from(verified.peer().rank);
    let is_free = !vector
        .context
        .list("taken")
        .any(|taken| taken.as_u64() == Some(rank));
    match verified.check(is_free) {
        Ok(()) => {
            let (linked, welcome) = verified.welcome()?;
            same("welcome", &welcome, vector.file(3)?)?;
            Ok(linked)
        }
        Err(error) => {
            let frame = verified.refuse(error.refusal, vector.context.text("text"))?;
            same("refused", &frame, vector.file(3)?)?;
            Err(error.into())
        }
    }
}

fn settings(context: &Context<'_>, own: &Context<'_>) -> Result<Settings, BadVector> {
    let digest = own.bytes("fingerprint")?;
    let fields: Vec<[u8; 32]> = context
        .list("fields")
        .filter_map(|it| it.as_str().and_then(from_hex))
        .collect();
    let fingerprint = match <[[u8; 32]; 8]>::try_from(fields) {
        Ok(fields) => Fingerprint::new(fields),
        Err(_) => Fingerprint::of_digest(digest),
    };
    if fingerprint.digest() != &digest {
        return Err(BadVector(
            "the fields do not make the fingerprint".to_string(),
        ));
    }
    let suite = Suite::from_number(own.number("suite", 1)?).ok_or_else(|| missing("suite"))?;
    Ok(Settings {
        suite,
        lane: own.number("lane", 0)?,
        lanes: own.number("lanes", 1)?,
        options: own.number("options", 0)?,
        payload_max: own.number("payload_max", 0)?,
        payload_need: context.number("payload_need", 0)?,
        launch_id: own.bytes("launch_id")?,
        ..Settings::new(own.number("rank", 0)?, own.number("world", 0)?, fingerprint)
    })
}

/// The values of section 4.4, from the frames that crossed.
fn hashes(
    vector: &Vector<'_>,
    secret: &Secret,
    linked: &Linked,
) -> Result<Map<String, Value>, Outcome> {
    let (hello, challenge, proof) = (vector.file(0)?, vector.file(1)?, vector.file(2)?);
    let payload = vector.file(3)?.get(HEADER_BYTES..).unwrap_or_default();
    let (identity, mac) = payload
        .split_first_chunk::<IDENTITY_BYTES>()
        .ok_or_else(|| missing("a welcome"))?;
    let mac: [u8; 32] = mac.try_into().map_err(|_| missing("a welcome"))?;
    let th1 = proof::hello_hash(hello, challenge);
    let th2 = proof::welcome_hash(&th1, proof, identity);
    let th3 = proof::ready_hash(&th2, &mac);
    let decoded = json!({
        "th1": hex(&th1),
        "mac_c": hex(&secret.connector_mac(&th1)),
        "th2": hex(&th2),
        "mac_a": hex(&secret.acceptor_mac(&th2)),
        "th3": hex(&th3),
        "traffic_c2a": hex(&*linked.traffic_to_acceptor),
        "traffic_a2c": hex(&*linked.traffic_to_connector),
        "launch_id": hex(&linked.launch_id),
        "peer_rank_seen": linked.peer.rank,
    });
    match decoded {
        Value::Object(decoded) => Ok(decoded),
        _ => Err(missing("an object").into()),
    }
}

/// The judged end makes its own frames; each must be the one of the vector.
fn same(what: &str, own: &[u8], file: &[u8]) -> Result<(), BadVector> {
    if own == file {
        return Ok(());
    }
    Err(BadVector(format!(
        "the {what} made here differs: {}",
        hex(own)
    )))
}
