//! Waits on a pair of sockets: what they do with the processor, and what ends them.

use std::io::Write;
use std::os::unix::net::UnixStream;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Wait for `link` again and again until the deadline is over.
fn wait_out(wait: &mut Wait<'_>, link: &UnixStream, deadline: Deadline) {
    while wait.until(link.as_fd(), READ, Some(deadline)).unwrap() {}
}

fn spinning(from: Duration, until: Duration) -> Way {
    Way::Spin { from, until }
}

#[test]
fn a_wait_that_shall_spin_later_sleeps_until_then() {
    let (fate, (link, _far)) = (Fate::new().unwrap(), UnixStream::pair().unwrap());
    let mut wait = Wait::new(&fate, &Uninterrupted, Strategy::Adaptive);
    wait.spend(spinning(MS * 5, MS * 60_000));
    wait.again(link.as_fd(), READ).unwrap();
    let outcome = wait.outcome().unwrap();
    assert!(outcome.waited >= MS * 5);
    assert!(outcome.overslept.is_some());
    wait.again(link.as_fd(), READ).unwrap();
    assert_eq!(wait.outcome().unwrap().end, End::Spinning);
    let spent = wait.take_spent();
    assert!(spent.slept >= MS * 5);
}

#[test]
fn a_spin_in_vain_goes_to_sleep_again() {
    let (fate, (link, _far)) = (Fate::new().unwrap(), UnixStream::pair().unwrap());
    let mut wait = Wait::new(&fate, &Uninterrupted, Strategy::Adaptive);
    wait.spend(spinning(Duration::ZERO, MS * 2));
    // Long beside the spin: a machine that takes the processor away for a while changes nothing.
    wait_out(&mut wait, &link, Deadline::after(MS * 500));
    assert_eq!(wait.outcome().unwrap().end, End::InVain);
    let spent = wait.take_spent();
    assert!(spent.spun >= MS && spent.slept >= MS, "{spent:?}");
}

#[test]
fn bytes_wake_a_sleeper() {
    let (fate, (link, mut far)) = (Fate::new().unwrap(), UnixStream::pair().unwrap());
    far.write_all(b"x").unwrap();
    for way in [Way::Sleep(Reason::Idle), spinning(MS * 60_000, MS * 60_001)] {
        let mut wait = Wait::new(&fate, &Uninterrupted, Strategy::Adaptive);
        wait.spend(way);
        wait.again(link.as_fd(), READ).unwrap();
        let outcome = wait.outcome().unwrap();
        assert_eq!((outcome.end, outcome.overslept), (End::Asleep, None));
    }
}

#[test]
fn other_strategies_keep_to_themselves_whatever_was_learned() {
    let (fate, (link, _far)) = (Fate::new().unwrap(), UnixStream::pair().unwrap());
    for strategy in [Strategy::Block, Strategy::Spin] {
        let mut wait = Wait::new(&fate, &Uninterrupted, strategy);
        wait.spend(spinning(MS, MS * 60_000));
        wait_out(&mut wait, &link, Deadline::after(MS));
        let spent = wait.take_spent();
        let idle = if strategy == Strategy::Spin {
            spent.slept
        } else {
            spent.spun
        };
        assert_eq!(idle, Duration::ZERO, "{strategy:?}");
    }
}

#[test]
fn the_fate_ends_every_kind_of_wait() {
    let (fate, (link, _far)) = (Fate::new().unwrap(), UnixStream::pair().unwrap());
    fate.set(LinkError::config("key", "too late".to_owned()));
    for strategy in Strategy::ALL {
        for way in [Way::Sleep(Reason::Idle), spinning(Duration::ZERO, MS)] {
            let mut wait = Wait::new(&fate, &Uninterrupted, strategy);
            wait.spend(way);
            assert!(wait.again(link.as_fd(), READ).is_err(), "{strategy:?}");
        }
    }
}

#[test]
fn a_signal_ends_a_spin_within_a_slice() {
    struct Pending;
    impl Interrupt for Pending {
        fn is_pending(&self) -> bool {
            true
        }
    }
    let (fate, (link, _far)) = (Fate::new().unwrap(), UnixStream::pair().unwrap());
    let mut wait = Wait::new(&fate, &Pending, Strategy::Spin);
    let start = Instant::now();
    while wait.again(link.as_fd(), READ).is_ok() {}
    assert!(start.elapsed() < SLICE * 40);
}
