//! The decision on made-up waits: what it spends, what it wins, when it stops and tries again.

use super::*;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

/// A source of numbers that is the same in every run.
struct Draw(u64);

impl Draw {
    /// Below `most`.
    fn below(&mut self, most: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        let high = u32::try_from(self.0 >> 32).unwrap();
        u32::try_from((u64::from(high) * u64::from(most)) >> 32).unwrap()
    }
}

/// What a series of waits came to.
#[derive(Debug, Default)]
struct Tally {
    waited: Duration,
    spun: Duration,
    won: u32,
    in_vain: u32,
    asleep: u32,
}

impl Tally {
    fn spun_share(&self) -> f64 {
        self.spun.as_secs_f64() / self.waited.as_secs_f64()
    }

    fn won_share(&self) -> f64 {
        f64::from(self.won) / f64::from(self.won + self.in_vain + self.asleep)
    }
}

/// Spend one wait as a sleeper that comes back `late` after it wanted to.
fn spend(habit: &mut Habit, tally: &mut Tally, length: Duration, late: Duration) {
    let (end, spun, overslept) = match habit.choose() {
        Way::Sleep(_) => (End::Asleep, Duration::ZERO, None),
        Way::Spin { from, .. } if length < from => (End::Asleep, Duration::ZERO, None),
        Way::Spin { from, until } => {
            let slept = !from.is_zero();
            let back = if slept { from + late } else { from };
            let overslept = slept.then_some(late);
            if back >= length {
                (End::Asleep, Duration::ZERO, overslept)
            } else if length <= until {
                (End::Spinning, length.saturating_sub(back), overslept)
            } else {
                (End::InVain, until.saturating_sub(back), overslept)
            }
        }
    };
    tally.waited += length;
    tally.spun += spun;
    match end {
        End::Spinning => tally.won += 1,
        End::InVain => tally.in_vain += 1,
        End::Asleep => tally.asleep += 1,
    }
    habit.learn(Outcome {
        waited: length,
        end,
        overslept,
    });
}

/// Many waits, the sleeper being 60 to 80 us late.
fn series(
    habit: &mut Habit,
    count: u32,
    mut length: impl FnMut(u32, &mut Draw) -> Duration,
) -> Tally {
    let (mut tally, mut draw) = (Tally::default(), Draw(7));
    for index in 0..count {
        let late = US * (60 + draw.below(20));
        let length = length(index, &mut draw);
        spend(habit, &mut tally, length, late);
    }
    tally
}

#[test]
fn nothing_is_spun_for_before_a_few_waits_were_seen() {
    let mut habit = Habit::default();
    let tally = series(&mut habit, 4, |_, _| MS);
    assert_eq!((tally.asleep, tally.spun), (4, Duration::ZERO));
    assert!(matches!(habit.choose(), Way::Spin { .. }));
}

#[test]
fn a_steady_wait_is_won_by_a_short_spin() {
    for length in [MS, MS * 3, MS * 10, MS * 100] {
        let tally = series(&mut Habit::default(), 1_000, |_, _| length);
        assert!(tally.won_share() > 0.99, "{length:?}: {tally:?}");
        assert!(tally.spun_share() < 0.2, "{length:?}: {tally:?}");
        assert!(tally.spun < US * 2_050 * 1_000, "{length:?}: {tally:?}");
    }
}

#[test]
fn a_wait_that_jitters_a_little_is_won_mostly_within_the_share() {
    for length in [MS, MS * 3, MS * 10] {
        let jitter = 100;
        let tally = series(&mut Habit::default(), 1_000, |_, draw| {
            length + US * draw.below(jitter)
        });
        assert!(tally.won_share() > 0.7, "{length:?}: {tally:?}");
        assert!(tally.spun_share() < 0.2, "{length:?}: {tally:?}");
    }
}

#[test]
fn rare_long_waits_cost_little_and_teach_nothing() {
    let tally = series(&mut Habit::default(), 1_000, |index, _| {
        if index % 10 == 9 { MS * 30 } else { MS * 3 }
    });
    assert!(tally.won_share() > 0.85, "{tally:?}");
    assert!(tally.spun_share() < 0.1, "{tally:?}");
}

#[test]
fn a_wait_that_jitters_more_than_a_spin_may_take_is_slept_through() {
    let mut habit = Habit::default();
    let tally = series(&mut habit, 1_000, |_, draw| MS + US * draw.below(9_000));
    assert!(tally.spun_share() < 0.05, "{tally:?}");
}

#[test]
fn a_wait_of_two_lengths_in_turn_is_slept_through() {
    let mut habit = Habit::default();
    let tally = series(
        &mut habit,
        1_000,
        |index, _| {
            if index % 2 == 0 { MS } else { MS * 5 }
        },
    );
    assert_eq!(habit.choose(), Way::Sleep(Reason::Unsteady));
    assert!(tally.spun_share() < 0.01, "{tally:?}");
}

#[test]
fn a_wait_that_grows_slowly_is_followed() {
    let mut habit = Habit::default();
    let tally = series(&mut habit, 2_000, |index, _| MS * 3 + US * 4 * index);
    assert!(tally.won_share() > 0.95, "{tally:?}");
    assert!(tally.spun_share() < 0.2, "{tally:?}");
}

#[test]
fn a_new_length_is_learned_within_eight_waits() {
    let mut habit = Habit::default();
    series(&mut habit, 100, |_, _| MS * 3);
    let change = series(&mut habit, 8, |_, _| MS * 7);
    let after = series(&mut habit, 100, |_, _| MS * 7);
    assert!(change.in_vain <= 8, "{change:?}");
    assert_eq!(after.won, 100, "{after:?}");
}

#[test]
fn a_short_wait_is_spun_through_from_its_start() {
    let mut habit = Habit::default();
    let tally = series(&mut habit, 100, |_, draw| US * (15 + draw.below(30)));
    assert_eq!(tally.won, 96);
    let from_start = matches!(habit.choose(), Way::Spin { from, .. } if from.is_zero());
    assert!(from_start);
}

#[test]
fn a_wait_so_long_that_waking_does_not_count_is_slept_through() {
    let mut habit = Habit::default();
    let tally = series(&mut habit, 20, |_, _| MS * 500);
    assert_eq!(tally.spun, Duration::ZERO);
    assert_eq!(habit.choose(), Way::Sleep(Reason::Long));
}

#[test]
fn a_sleeper_that_is_back_later_goes_to_sleep_for_less() {
    let begins = |late: u32| {
        let (mut habit, mut tally) = (Habit::default(), Tally::default());
        for _ in 0..20 {
            spend(&mut habit, &mut tally, MS * 5, US * late);
        }
        match habit.choose() {
            Way::Spin { from, .. } => from,
            Way::Sleep(reason) => panic!("slept: {reason:?}"),
        }
    };
    assert_eq!(begins(50), begins(250) + US * 200);
}

#[test]
fn spins_in_vain_end_spinning_for_a_while_and_longer_each_time() {
    let mut habit = Habit::default();
    // What is waited for comes just after every spin.
    let mut rests = Vec::new();
    for _ in 0..8 {
        while habit.rest == 0 {
            for _ in 0..REMEMBERED {
                habit.waits.push(MS * 3);
            }
            assert!(matches!(habit.choose(), Way::Spin { .. }));
            habit.judge(1);
        }
        assert_eq!(habit.choose(), Way::Sleep(Reason::Wasted));
        rests.push(habit.rest);
        for _ in 0..habit.rest {
            habit.learn(Outcome {
                waited: MS * 3,
                end: End::Asleep,
                overslept: None,
            });
        }
    }
    assert_eq!(rests, [64, 128, 256, 512, 1_024, 2_048, 4_096, 4_096]);
}

#[test]
fn spins_that_are_won_again_make_the_next_rest_short_again() {
    let mut habit = Habit {
        next_rest: 1_024,
        ..Habit::default()
    };
    series(&mut habit, 40, |_, _| MS * 3);
    assert_eq!(habit.next_rest, 0);
}

#[test]
fn a_sleeper_that_was_kept_away_for_long_does_not_make_the_spins_long() {
    let mut habit = Habit::default();
    let mut tally = Tally::default();
    for index in 0..200_u32 {
        let late = if index % 3 == 0 { MS * 20 } else { US * 60 };
        spend(&mut habit, &mut tally, MS * 10, late);
    }
    assert!(tally.spun_share() < 0.25, "{tally:?}");
}
