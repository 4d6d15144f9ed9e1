//! Every file of tests/vectors: the right value, or the refusal that it names.
//! The judge is the crate's own `vector`, which the Python binding shares.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test fails by panicking"
)]

use std::{collections::BTreeMap, fs, path::PathBuf};

use stagelink_proto::{
    Refusal,
    vector::{Files, judge},
};

fn vectors() -> (PathBuf, Vec<serde_json::Value>) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
    let text = fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(manifest["format"], 1);
    (folder, manifest["vectors"].as_array().unwrap().clone())
}

fn files_of(folder: &std::path::Path, entry: &serde_json::Value) -> Files {
    let paths = entry["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| path.as_str().unwrap());
    paths
        .map(|path| (path.to_string(), fs::read(folder.join(path)).unwrap()))
        .collect()
}

#[test]
fn every_vector_ends_as_the_manifest_says() {
    let (folder, entries) = vectors();
    assert!(entries.len() > 100, "the manifest is there");
    let mut wrong = Vec::new();
    // What needs a cipher is judged where there is one, in rust/net.
    let judged = entries
        .iter()
        .filter(|entry| !entry["name"].as_str().unwrap().starts_with("sealed/"));
    for entry in judged {
        let expected = entry["refusal"].as_str();
        let got = match judge(&entry.to_string(), &files_of(&folder, entry)) {
            Ok(None) => None,
            Ok(Some(error)) => Some(error.refusal.name().to_string()),
            Err(bad) => Some(format!("(cannot be judged) {bad}")),
        };
        if got.as_deref() != expected {
            wrong.push(format!(
                "{}: expected {expected:?}, got {got:?}",
                entry["name"]
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        entries.len(),
        wrong.join("\n")
    );
}

#[test]
fn every_named_refusal_is_one_of_ours() {
    let (_, entries) = vectors();
    let names: BTreeMap<&str, &serde_json::Value> = entries
        .iter()
        .filter_map(|entry| Some((entry["refusal"].as_str()?, &entry["name"])))
        .collect();
    for (name, entry) in names {
        assert!(Refusal::from_name(name).is_some(), "{entry} names {name}");
    }
}
