//! A header: one byte of rules, then 32 bytes.
//!
//! What is accepted is what would be sent for it, and within the receiver's limit.

use stagelink_proto::frame::{FrameRules, Header, PayloadSize};

use crate::source::Source;

/// # Panics
///
/// Where a rule does not hold.
pub fn judge(input: &[u8]) {
    let mut source = Source::new(input);
    let rules_byte = source.u8();
    let rules = FrameRules {
        checksums: rules_byte & 1 == 0,
        payload_max: if rules_byte & 2 == 0 { 1 << 30 } else { 4096 },
        sealed: rules_byte & 4 != 0,
    };
    let bytes = source.array::<32>();
    let Ok(header) = Header::parse(&bytes, &rules) else {
        return;
    };
    assert_eq!(header.encode(), bytes, "a header has one form");
    if !matches!(header.kind.payload_size(), PayloadSize::Exactly(_)) {
        assert!(u64::from(header.payload_bytes) <= rules.payload_max);
    }
}
