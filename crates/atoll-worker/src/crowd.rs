//! Commands that have just begun: how many of them run at once, and how quickly they end.
//!
//! Where many short commands are asked for at once they are the crowd themselves. Nobody gains by being let in before
//! one of them that runs: it would have ended a moment later, and now has to be put aside and taken up again. So the
//! server's threads, which are let in as soon as they wake, wait for their turns meanwhile.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

/// For so long a command counts as one that has just begun. Many at once take their time: where they counted as others after 20 ms,
/// each beat of the metronome made them slower, and what was slow stayed so.
const YOUTH: Duration = Duration::from_millis(200);
/// They are counted by the part of time in which they began, or ended.
const PART: Duration = Duration::from_millis(8);
/// How many at once, for each processor, are a crowd.
const MANY: u64 = 4;
/// How many must end in a part, for each processor: who has one to itself for longer than that is to be interrupted.
const QUICK: u64 = 2;

/// One for all runtimes of this process: what is scheduled is the machine's.
static CROWD: LazyLock<Crowd> = LazyLock::new(Crowd::new);

struct Crowd {
    begin: Instant,
    /// Nothing before somebody serves: there is no crowd then.
    processors: OnceLock<u64>,
    /// Those that run, by when they began.
    young: Tally,
    /// Those that have ended, by when.
    ended: Tally,
}

impl Crowd {
    fn new() -> Self {
        Self {
            begin: Instant::now(),
            processors: OnceLock::new(),
            young: Tally::default(),
            ended: Tally::default(),
        }
    }

    /// The number of the part that is now.
    fn part(&self) -> u64 {
        parts(self.begin.elapsed())
    }

    fn young(&self, now: u64) -> u64 {
        self.young.since(now.saturating_sub(parts(YOUTH)))
    }

    /// There are many, and they are short.
    fn is_there(&self, now: u64) -> bool {
        self.processors.get().is_some_and(|processors| {
            self.young(now) >= MANY * processors
                && self.ended.since(now.saturating_sub(1)) >= QUICK * processors
        })
    }
}

fn parts(time: Duration) -> u64 {
    (time.as_micros() / PART.as_micros()) as u64
}

/// Counts by parts of time, as far back as there are slots.
#[derive(Default)]
struct Tally([AtomicU64; 32]);

impl Tally {
    const BITS: u32 = 24;

    /// Counts one more, or one less, of a part.
    fn count(&self, part: u64, change: impl Fn(u64) -> u64) {
        let slot = &self.0[part as usize % self.0.len()];
        let counted = |old: u64| {
            let (of, count) = (old >> Self::BITS, old & ((1 << Self::BITS) - 1));
            let count = if of == part { change(count) } else { change(0) };
            // Of one whose place is another's by now nothing is known any more.
            (of <= part).then_some(part << Self::BITS | count)
        };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
    }

    fn add(&self, part: u64) {
        self.count(part, |count| count + 1);
    }

    fn take(&self, part: u64) {
        self.count(part, |count| count.saturating_sub(1));
    }

    /// How many there are of a part and those after it.
    fn since(&self, part: u64) -> u64 {
        let slots = self.0.iter().map(|slot| slot.load(Ordering::Relaxed));
        let counted = slots.filter(|slot| slot >> Self::BITS >= part);
        counted.map(|slot| slot & ((1 << Self::BITS) - 1)).sum()
    }
}

/// A command, from before it begins to its end.
pub(crate) struct Asked(u64);

/// Says how many processors there are, from when on there may be a crowd.
pub(crate) fn start(processors: &[u32]) {
    CROWD.processors.get_or_init(|| processors.len() as u64);
}

/// A command is asked for.
pub(crate) fn ask() -> Asked {
    let part = CROWD.part();
    CROWD.young.add(part);
    Asked(part)
}

impl Drop for Asked {
    fn drop(&mut self) {
        CROWD.young.take(self.0);
        CROWD.ended.add(CROWD.part());
    }
}

/// How many commands that have just begun run.
pub(crate) fn young() -> u64 {
    CROWD.young(CROWD.part())
}

/// Has this thread, one of those that go before others, interrupt nobody while there is a crowd of short commands. To be said
/// whenever it has nothing to do.
pub fn step_back_in_a_crowd() {
    thread_local! {
        static BACK: Cell<bool> = const { Cell::new(false) };
    }
    let crowd = CROWD.is_there(CROWD.part());
    if BACK.replace(crowd) != crowd {
        if crowd {
            atoll_jail::go_in_turn();
        } else {
            atoll_jail::go_before_others();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_the_last_moment_are_counted() {
        let crowd = Crowd::new();
        for began in [100, 100, 110] {
            crowd.young.add(began);
        }
        assert_eq!(crowd.young(110), 3);
        crowd.young.take(100);
        assert_eq!(crowd.young(110), 2);
        // What runs for long is no part of the crowd; its end, when its place is another's, concerns nobody.
        assert_eq!(crowd.young(125), 2);
        assert_eq!(crowd.young(126), 1);
        crowd.young.add(132);
        crowd.young.take(100);
        assert_eq!(crowd.young(135), 2);
        assert_eq!(crowd.young(136), 1);
    }

    #[test]
    fn many_short_commands_are_a_crowd_and_many_long_ones_are_not() {
        let crowd = Crowd {
            processors: OnceLock::from(2),
            ..Crowd::new()
        };
        for _ in 0..8 {
            crowd.young.add(100);
        }
        assert!(!crowd.is_there(101), "none of them has ended");
        for _ in 0..4 {
            crowd.ended.add(101);
        }
        assert!(crowd.is_there(101));
        assert!(crowd.is_there(102), "that was just now");
        assert!(!crowd.is_there(103), "the others go on");
        for _ in 0..4 {
            crowd.ended.add(103);
        }
        assert!(crowd.is_there(103));
        crowd.young.take(100);
        assert!(!crowd.is_there(103), "few are left");
    }

    #[test]
    fn a_thread_steps_back_while_there_is_a_crowd() {
        let (other, batch) = ("0", "3");
        let policy = || atoll_testkit::policy("/proc/thread-self".as_ref()).expect("a policy");
        start(&[0, 1]);
        assert_eq!(policy(), other);
        let begin = Instant::now();
        while policy() != batch {
            assert!(begin.elapsed() < Duration::from_secs(20), "no crowd");
            let many = MANY as usize * 2;
            let mut asked: Vec<Asked> = (0..many * 2).map(|_| ask()).collect();
            // Half of them end.
            asked.truncate(many);
            step_back_in_a_crowd();
        }
        while policy() != other {
            assert!(begin.elapsed() < Duration::from_secs(20), "for ever");
            step_back_in_a_crowd();
        }
    }
}
