//! How many bytes the next write may have, and when: slices and rates.
//!
//! It knows no bytes and reads no clock.

use std::time::Duration;

use crate::draw::{Draw, Use};
use crate::faults::Faults;
use crate::limits::PACE_STEP;

/// The pace of one direction.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// No write before this moment.
    next_write: Duration,
    /// Bytes left of the slice that is being written.
    slice_left: u64,
}

impl Pace {
    /// The moment of the next write, where that is later than now.
    pub(crate) fn wait_until(&self, now: Duration) -> Option<Duration> {
        (self.next_write > now).then_some(self.next_write)
    }

    /// The most bytes of the write at `offset`, at least 1.
    pub(crate) fn bytes_max(&mut self, faults: &Faults, draw: Draw, offset: u64) -> usize {
        let mut most = u64::MAX;
        if let Some(slice) = faults.slice {
            if self.slice_left == 0 {
                self.slice_left = 1 + draw.below(Use::Slice, offset, slice.bytes_max);
            }
            most = self.slice_left;
        }
        if let Some(rate) = faults.rate {
            let steps = u64::try_from(1_000 / PACE_STEP.as_millis()).unwrap_or(1);
            most = most.min((rate / steps).max(1));
        }
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// So many bytes were written now.
    pub(crate) fn wrote(&mut self, count: u64, faults: &Faults, now: Duration) {
        self.slice_left = self.slice_left.saturating_sub(count);
        if let Some(slice) = faults.slice
            && self.slice_left == 0
        {
            self.next_write = self.next_write.max(now + slice.pause);
        }
        if let Some(rate) = faults.rate {
            // A late wake-up is caught up, by at most two steps.
            let base = self.next_write.max(now.saturating_sub(2 * PACE_STEP));
            self.next_write = base + time_of(count, rate);
        }
    }
}

/// How long `count` bytes take at `rate` bytes in a second.
fn time_of(count: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(count) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}
