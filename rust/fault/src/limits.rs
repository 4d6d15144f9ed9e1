//! Every limit of the proxy, with its name.
//!
//! It decides nothing; the files that hold the queues and lists do.

use std::time::Duration;

/// Bytes that one direction of one connection holds back at most before it stops reading.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Bytes of one `duplicate` or of one half of a `reorder`.
pub const WINDOW_BYTES_MAX: usize = 16 << 20;
/// Bytes of one read.
pub const READ_BYTES_MAX: usize = 64 << 10;
/// Faults bound to an offset that one direction of one connection remembers.
pub const MARKS_MAX: usize = 1024;
/// Commands that are remembered for later connections.
pub const RULES_MAX: usize = 4096;
/// Connections over the life of one proxy; later ones are reset.
pub const CONNECTIONS_MAX: usize = 1024;
/// Longest latency, jitter or pause.
pub const DELAY_MAX: Duration = Duration::from_secs(3600);
/// A rate is paced in steps of this length.
pub const PACE_STEP: Duration = Duration::from_millis(5);
/// How long the proxy dials its target, again and again, before it resets the connection.
pub const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two attempts to dial.
pub const DIAL_PAUSE: Duration = Duration::from_millis(20);
/// After `truncate`: how long late bytes are still swallowed before the sockets close. A close
/// with unread bytes would be a reset, and would not look like an orderly end.
pub const CLOSE_GRACE: Duration = Duration::from_millis(200);
