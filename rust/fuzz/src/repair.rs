//! Gives frames their magic and checksums, so that a change of their fields is looked at.
//!
//! It makes no frame.

use stagelink_proto::frame::checksum;

const HEADER_BYTES: usize = 32;

/// Repair every whole header in a stream of frames.
pub(crate) fn repair(stream: &mut [u8]) {
    let mut rest = stream;
    while let Some((header, after)) = rest.split_at_mut_checked(HEADER_BYTES) {
        header[..4].copy_from_slice(b"SLNK");
        let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        let count = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(after.len());
        let (payload, next) = after.split_at_mut(count);
        let computed = if header[6] & 1 == 0 {
            0
        } else {
            checksum(payload)
        };
        header[24..28].copy_from_slice(&computed.to_le_bytes());
        let computed = checksum(&header[..28]);
        header[28..].copy_from_slice(&computed.to_le_bytes());
        rest = next;
    }
}
