//! Every number of the protocol that bounds a size, a count or a wait (docs/protocol.md 8).
//! It decides nothing; the modules that use a limit say which refusal answers it.

use core::time::Duration;

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the header that its own checksum covers.
pub const HEADER_CHECKED_BYTES: usize = 28;
/// Most payload bytes of a frame of any kind: 1 GiB.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 30;
/// Most payload bytes of a plan frame: 4 MiB.
pub const PLAN_BYTES_MAX: u32 = 4 << 20;
/// Most payload bytes of a describe frame.
pub const DESCRIBE_BYTES_MAX: u32 = 2_048;
/// Most payload bytes of a roster frame.
pub const ROSTER_BYTES_MAX: u32 = 33_672;
/// Most payload bytes of a fate frame.
pub const FATE_BYTES_MAX: u32 = 528;

/// Most plaintext bytes of one record of a sealed frame.
pub const RECORD_BYTES: u32 = 262_144;
/// Bytes of the tag that follows each record of a sealed frame.
pub const TAG_BYTES: u32 = 16;
/// Records that one direction of a sealed connection may carry: with AES-GCM, 2^48 blocks at most.
pub const SEALED_RECORDS_MAX: u64 = 1 << 34;

/// Bytes of an identity block, the payload of a hello.
pub const IDENTITY_BYTES: usize = 128;
/// Bytes of a MAC, a nonce, a key and a digest.
pub const DIGEST_BYTES: usize = 32;
/// Payload bytes of a welcome: an identity block and a MAC.
pub const WELCOME_BYTES: usize = IDENTITY_BYTES + DIGEST_BYTES;
/// Payload bytes of a refused.
pub const REFUSED_BYTES: usize = 256;
/// Bytes of a refused that its MAC covers.
pub const REFUSED_PROVED_BYTES: usize = REFUSED_BYTES - DIGEST_BYTES;
/// Most text bytes of a refused.
pub const REFUSED_TEXT_MAX: usize = 156;
/// Most text bytes of a fate.
pub const FATE_TEXT_MAX: usize = 512;
/// Most bytes of one text of a describe or a roster.
pub const TEXT_MAX: usize = 255;

/// Fewest stages of a ring.
pub const WORLD_MIN: u32 = 2;
/// Most stages of a ring.
pub const WORLD_MAX: u32 = 64;
/// Most layers of a model.
pub const LAYERS_MAX: u32 = 4_096;
/// Most values of one plane of one row.
pub const WIDTH_MAX: u32 = 1 << 20;
/// Most planes of a boundary row.
pub const PLANES_MAX: u8 = 8;
/// Most rows of one round.
pub const ROWS_MAX: u32 = 65_536;
/// Most stream entries of one plan.
pub const STREAMS_MAX: u32 = 1_024;
/// Most positions of one stream.
pub const CONTEXT_MAX: u32 = 1 << 24;
/// Most fp32 values of a tap sum.
pub const DRAFT_WIDTH_MAX: u32 = 1 << 20;
/// Most payload bytes of a rows frame on a ring link's row lane; larger ones take its bulk lane.
pub const ROW_LANE_BYTES: u32 = 65_536;
/// Most rows buffers of one boundary.
pub const BUFFERS_MAX: u16 = 64;
/// Most plans with rows that may be unfinished at once.
pub const ROUNDS_IN_FLIGHT_MAX: u16 = 64;
/// Most tap layers of one stage.
pub const TAPS_MAX: u16 = 64;
/// Connections that an acceptor holds before their proof.
pub const PENDING_MAX: usize = 8;

/// The whole handshake of one connection, absolute.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// From the start of a rank until the ring is complete, unless the user says otherwise.
pub const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// The keep-alive interval, unless the open message says otherwise.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Smallest and largest keep-alive interval that an open message may carry, in milliseconds.
pub const KEEPALIVE_MS: core::ops::RangeInclusive<u32> = 20..=60_000;
/// Silent intervals that end the ring, unless the open message says otherwise.
pub const SILENT_INTERVALS: u32 = 3;
/// Fewest and most silent intervals that an open message may carry.
pub const SILENT_INTERVALS_RANGE: core::ops::RangeInclusive<u32> = 2..=100;
/// Longest time without a byte inside a frame.
pub const PAYLOAD_STALL_LIMIT: Duration = Duration::from_secs(5);
/// Slowest rate that a whole payload is given time for, in bytes a second: a link of 1 Mbit/s is
/// slow and not dead. One that carries nothing is found by the stall limit.
pub const PAYLOAD_RATE_MIN: u32 = 100_000;
/// How long a rank waits for the lead's fate before it reports its own.
pub const FATE_WAIT: Duration = Duration::from_millis(500);
/// How long a rank waits for the other side's bye.
pub const BYE_WAIT: Duration = Duration::from_secs(1);
/// How long an acceptor waits for the fate that answers its refusal.
pub const REFUSED_FATE_WAIT: Duration = Duration::from_secs(1);

/// The absolute limit for a payload of `payload_bytes`, from its frame's first byte.
#[must_use]
pub fn payload_limit(payload_bytes: u32) -> Duration {
    let rate = u64::from(PAYLOAD_RATE_MIN);
    let millis = u64::from(payload_bytes)
        .saturating_mul(1_000)
        .div_ceil(rate);
    PAYLOAD_STALL_LIMIT.saturating_add(Duration::from_millis(millis))
}

const _: () = {
    assert!(usize::BITS >= 32, "payload sizes are u32 and index memory");
    assert!(HEADER_CHECKED_BYTES + 4 == HEADER_BYTES);
    assert!(4 + REFUSED_TEXT_MAX + 64 == REFUSED_PROVED_BYTES);
    assert!(PLAN_BYTES_MAX <= PAYLOAD_BYTES_MAX);
    assert!(WORLD_MIN < WORLD_MAX);
    assert!(ROSTER_BYTES_MAX == 8 + WORLD_MAX * (16 + 2 * 255));
};
