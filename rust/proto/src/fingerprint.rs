//! The fingerprint: eight digests that bind everything that changes bits (docs/protocol.md 4.5).
//! What goes into a field is not known here; two fields are equal or not.

use sha2::{Digest as _, Sha256};

use crate::error::Refusal;

/// The eight fields and the refusal that each one's difference raises, in their order.
pub const FIELDS: [(&str, Refusal); 8] = [
    ("config", Refusal::FingerprintConfig),
    ("tensors", Refusal::FingerprintTensors),
    ("tokenizer", Refusal::FingerprintTokenizer),
    ("template", Refusal::FingerprintTemplate),
    ("dtype", Refusal::FingerprintDtype),
    ("placement", Refusal::FingerprintPlacement),
    ("versions", Refusal::FingerprintVersions),
    ("shapes", Refusal::FingerprintShapes),
];

const HEAD_BYTES: usize = 8;

/// Eight field digests and the digest over them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fingerprint {
    fields: Option<[[u8; 32]; 8]>,
    digest: [u8; 32],
}

impl Fingerprint {
    /// Binds eight field digests, in the order of [`FIELDS`].
    #[must_use]
    pub fn new(fields: [[u8; 32]; 8]) -> Self {
        let mut hash = Sha256::new_with_prefix(b"stagelink/v1 fingerprint\0");
        for field in &fields {
            hash.update(field);
        }
        Self {
            fields: Some(fields),
            digest: hash.finalize().into(),
        }
    }

    /// A fingerprint of which only the whole is known; its heads are zeros.
    #[must_use]
    pub const fn of_digest(digest: [u8; 32]) -> Self {
        Self {
            fields: None,
            digest,
        }
    }

    /// The 32 bytes of the identity block.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The first 8 bytes of each field, as a refused message carries them.
    #[must_use]
    pub fn heads(&self) -> [u8; 64] {
        let mut heads = [0; 64];
        for (head, field) in heads
            .chunks_exact_mut(HEAD_BYTES)
            .zip(self.fields.iter().flatten())
        {
            for (to, from) in head.iter_mut().zip(field) {
                *to = *from;
            }
        }
        heads
    }

    /// The first field whose head differs, in the order of [`FIELDS`]; `None` where the own
    /// fields are not known.
    #[must_use]
    pub fn first_difference(&self, heads: &[u8; 64]) -> Option<Refusal> {
        self.fields?;
        self.heads()
            .chunks_exact(HEAD_BYTES)
            .zip(heads.chunks_exact(HEAD_BYTES))
            .zip(FIELDS)
            .find_map(|((own, other), (_, refusal))| (own != other).then_some(refusal))
    }
}
