//! Whether others want the processor that a spin would take: how long the own thread had to queue
//! for one.
//!
//! The judgement is pure; `queued` alone asks the system, and only Linux answers.

use std::time::Duration;

/// How often the system is asked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Queueing for one part in so many of the time, at two looks in a row, is a crowd. Seen once it is
/// an accident, of which even a quiet machine has several a second.
const CROWDED_SHARE: u32 = 20;
/// How long nobody spins after a crowd was seen; doubled each time, up to the second.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// What one rank has seen of others who want its processors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd {
    looked: Duration,
    queued: Option<Duration>,
    /// Whether the last look saw too much queueing.
    is_suspect: bool,
    free_at: Duration,
    pause: Duration,
}

impl Crowd {
    /// Whether the system should be asked again.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.looked + LOOK_EVERY
    }

    /// Whether it is better not to spin. `now` is time since any fixed start.
    pub(crate) fn is_crowded(&self, now: Duration) -> bool {
        now < self.free_at
    }

    /// Take in for how long the thread has queued since it began; `None` where nobody knows.
    pub(crate) fn look(&mut self, now: Duration, queued: Option<Duration>) {
        let before = self.queued.zip(queued);
        let passed = now.saturating_sub(self.looked);
        (self.looked, self.queued) = (now, queued);
        let Some((before, queued)) = before else {
            return;
        };
        let is_much = queued.saturating_sub(before) * CROWDED_SHARE > passed;
        let was_much = std::mem::replace(&mut self.is_suspect, is_much);
        if is_much && was_much {
            // A crowd during the pause only makes it last; one after it, that spinning is no use.
            if now >= self.free_at {
                self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
            }
            self.free_at = now + self.pause;
        } else if now > self.free_at + PAUSE_MAX {
            self.pause = Duration::ZERO;
        }
    }
}

/// For how long the calling thread has been able to run and waited for a processor.
#[cfg(target_os = "linux")]
pub(crate) fn queued() -> Option<Duration> {
    use std::io::Read;
    let mut text = [0_u8; 64];
    let mut file = std::fs::File::open("/proc/thread-self/schedstat").ok()?;
    let count = file.read(&mut text).ok()?;
    let words = std::str::from_utf8(text.get(..count)?).ok()?;
    let queued = words.split_ascii_whitespace().nth(1)?;
    queued.parse().ok().map(Duration::from_nanos)
}

/// As on Linux; nothing is known here, and spins in vain are all that shows a crowd.
#[cfg(not(target_os = "linux"))]
pub(crate) fn queued() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Looks every 50 ms for `looks` looks, of which `busy_ms` are queued each time.
    fn looks(crowd: &mut Crowd, clock: &mut Clock, looks: u32, busy_ms: u32) {
        for _ in 0..looks {
            clock.now += LOOK_EVERY;
            clock.queued += MS * busy_ms;
            crowd.look(clock.now, Some(clock.queued));
        }
    }

    #[derive(Default)]
    struct Clock {
        now: Duration,
        queued: Duration,
    }

    #[test]
    fn a_free_processor_is_no_crowd() {
        let (mut crowd, mut clock) = (Crowd::default(), Clock::default());
        looks(&mut crowd, &mut clock, 100, 1);
        assert!(!crowd.is_crowded(clock.now));
    }

    #[test]
    fn queueing_for_a_tenth_of_the_time_at_two_looks_in_a_row_is_a_crowd() {
        let (mut crowd, mut clock) = (Crowd::default(), Clock::default());
        looks(&mut crowd, &mut clock, 3, 5);
        assert!(crowd.is_crowded(clock.now));
    }

    #[test]
    fn queueing_that_is_over_at_the_next_look_is_an_accident_however_long_it_was() {
        let (mut crowd, mut clock) = (Crowd::default(), Clock::default());
        for _ in 0..20 {
            looks(&mut crowd, &mut clock, 1, 1);
            looks(&mut crowd, &mut clock, 1, 40);
            assert!(!crowd.is_crowded(clock.now));
        }
    }

    #[test]
    fn the_first_look_knows_no_difference() {
        let (mut crowd, mut clock) = (Crowd::default(), Clock::default());
        looks(&mut crowd, &mut clock, 1, 50);
        assert!(!crowd.is_crowded(clock.now));
    }

    #[test]
    fn a_crowd_that_leaves_is_forgotten_after_the_pause() {
        let (mut crowd, mut clock) = (Crowd::default(), Clock::default());
        looks(&mut crowd, &mut clock, 3, 5);
        looks(&mut crowd, &mut clock, 9, 0);
        assert!(crowd.is_crowded(clock.now));
        looks(&mut crowd, &mut clock, 1, 0);
        assert!(!crowd.is_crowded(clock.now));
    }

    #[test]
    fn a_crowd_that_comes_back_whenever_spinning_does_makes_the_pauses_longer() {
        let (mut crowd, mut clock) = (Crowd::default(), Clock::default());
        looks(&mut crowd, &mut clock, 1, 0);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            looks(&mut crowd, &mut clock, 2, 5);
            let mut quiet = 0;
            while crowd.is_crowded(clock.now) {
                looks(&mut crowd, &mut clock, 1, 0);
                quiet += 1;
            }
            pauses.push(quiet);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 160, 160]);
    }

    #[test]
    fn a_system_that_does_not_answer_is_taken_as_free() {
        let mut crowd = Crowd::default();
        crowd.look(LOOK_EVERY, None);
        crowd.look(LOOK_EVERY * 2, None);
        assert!(!crowd.is_crowded(LOOK_EVERY * 2));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_runs_knows_for_how_long_it_queued() {
        assert!(queued().is_some());
    }
}
