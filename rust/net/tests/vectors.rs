//! The vectors about sealed frames, judged with the ciphers that rings use.
//! All other vectors are judged in rust/proto.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test fails by panicking"
)]

use std::{fs, path::PathBuf};

use stagelink_net::seal::RecordCipher;
use stagelink_proto::seal::Cipher;
use stagelink_proto::vector::{Files, judge_with};

#[test]
fn every_sealed_vector_ends_as_the_manifest_says() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
    let text = fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let entries = manifest["vectors"].as_array().unwrap();
    let sealed = entries
        .iter()
        .filter(|entry| entry["name"].as_str().unwrap().starts_with("sealed/"));
    let mut count = 0;
    for entry in sealed {
        let paths = entry["files"].as_array().unwrap().iter();
        let files: Files = paths
            .map(|path| path.as_str().unwrap())
            .map(|path| (path.to_owned(), fs::read(folder.join(path)).unwrap()))
            .collect();
        let judged = judge_with(&entry.to_string(), &files, &|suite, key| {
            RecordCipher::new(suite, key).map(|cipher| Box::new(cipher) as Box<dyn Cipher>)
        });
        let refusal = judged.map(|error| error.map(|error| error.refusal.name()));
        assert_eq!(refusal, Ok(entry["refusal"].as_str()), "{}", entry["name"]);
        count += 1;
    }
    assert!(count > 30, "the vectors are there");
}
