//! Being let in soon where sandboxes use every processor.
//!
//! The kernel lets in at once who wakes and has had less than its share. Whoever has had a little more, if only by some
//! microseconds, is looked at again at the next tick, up to 4 ms later. On its way through server, PID 1 and
//! program a command has some ten such moments.
//!
//! So while something is asked of sandboxes and more runs than there are processors, a thread on each of them wakes
//! twice a millisecond, before all others, and sleeps again: each time the kernel chooses anew. Shares stay what they are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_micros(500);
/// How long it beats after something was asked for.
const PHRASE: Duration = Duration::from_millis(20);
/// How soon it is looked again whether there is need.
const GLANCE: Duration = Duration::from_millis(2);

/// For so long a command counts as one that has just begun. Many at once take their time: where they counted as others after 20 ms,
/// each beat made them slower, and what was slow stayed so.
const YOUTH: Duration = Duration::from_millis(200);
/// They are counted by the part of it in which they began.
const PART: Duration = Duration::from_millis(8);

/// One for all runtimes of this process: what is scheduled is the machine's.
static METRONOME: OnceLock<Option<Metronome>> = OnceLock::new();

struct Metronome {
    clock: Clock,
    processors: usize,
    load: File,
    threads: Vec<Thread>,
    /// When the next look is due.
    look: AtomicU64,
    young: Young,
}

/// How many commands that have just begun run, by the [`PART`] in which they did: they are a crowd themselves, which waits for its
/// turns and gains nothing by being looked at more often.
#[derive(Default)]
struct Young([AtomicU64; 32]);

impl Young {
    const BITS: u32 = 24;

    /// The number of the part that is now, by a clock in microseconds.
    fn part(now: u64) -> u64 {
        now / micros(PART)
    }

    /// Counts one more, or one less, of those that began in a part.
    fn count(&self, began: u64, change: impl Fn(u64) -> u64) {
        let slot = &self.0[began as usize % self.0.len()];
        let counted = |old: u64| {
            let (of, count) = (old >> Self::BITS, old & ((1 << Self::BITS) - 1));
            let count = if of == began {
                change(count)
            } else {
                change(0)
            };
            // Of one whose place is another's by now nothing is known any more.
            (of <= began).then_some(began << Self::BITS | count)
        };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
    }

    fn running(&self, now: u64) -> u64 {
        let oldest = now.saturating_sub(Self::part(micros(YOUTH)));
        let slots = self.0.iter().map(|slot| slot.load(Ordering::Relaxed));
        let young = slots.filter(|slot| slot >> Self::BITS >= oldest);
        young.map(|slot| slot & ((1 << Self::BITS) - 1)).sum()
    }
}

/// A command, from before it begins to its end.
pub(crate) struct Asked(u64);

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(Some(metronome)) = METRONOME.get() {
            let less = |count: u64| count.saturating_sub(1);
            metronome.young.count(self.0, less);
        }
    }
}

/// What the threads look at.
#[derive(Clone, Copy)]
struct Clock {
    begin: Instant,
    until: &'static AtomicU64,
}

impl Clock {
    fn now(&self) -> u64 {
        micros(self.begin.elapsed())
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Makes it ready, if it is not. Where we may not go before others there is none.
pub(crate) fn start(processors: &[u32]) {
    METRONOME.get_or_init(|| Metronome::new(processors));
}

/// Something is asked for that somebody waits for.
pub(crate) fn attend() {
    if let Some(Some(metronome)) = METRONOME.get() {
        metronome.attend();
    }
}

/// A command is asked for.
pub(crate) fn ask() -> Asked {
    let Some(Some(metronome)) = METRONOME.get() else {
        return Asked(0);
    };
    let began = Young::part(metronome.clock.now());
    metronome.young.count(began, |count| count + 1);
    Asked(began)
}

impl Metronome {
    fn new(processors: &[u32]) -> Option<Self> {
        static UNTIL: AtomicU64 = AtomicU64::new(0);
        let clock = Clock {
            begin: Instant::now(),
            until: &UNTIL,
        };
        let threads = processors.iter().map(|&processor| {
            let (ready, is_ready) = std::sync::mpsc::channel();
            let beat = move || {
                let allowed = atoll_jail::go_first_on(processor);
                if ready.send(allowed).is_ok() && allowed {
                    beat(clock);
                }
            };
            let started = std::thread::Builder::new()
                .name("metronome".into())
                .stack_size(64 << 10)
                .spawn(beat);
            let thread = started.ok()?.thread().clone();
            is_ready.recv().ok()?.then_some(thread)
        });
        Some(Self {
            clock,
            processors: processors.len(),
            load: File::open("/proc/loadavg").ok()?,
            threads: threads.collect::<Option<_>>()?,
            look: AtomicU64::new(0),
            young: Young::default(),
        })
    }

    fn attend(&self) {
        let now = self.clock.now();
        let due = self.look.load(Ordering::Relaxed);
        // Of several at once one looks.
        let look = now + micros(GLANCE);
        let order = (Ordering::Relaxed, Ordering::Relaxed);
        if now < due
            || self
                .look
                .compare_exchange(due, look, order.0, order.1)
                .is_err()
        {
            return;
        }
        if self.is_crowded(now) {
            let until = now + micros(PHRASE);
            self.clock.until.store(until, Ordering::Relaxed);
            self.threads.iter().for_each(Thread::unpark);
        }
    }

    /// More wants to run than there are processors, beside what commands that have just begun have a part in: each by its program and its
    /// PID 1.
    fn is_crowded(&self, now: u64) -> bool {
        let mut text = [0; 128];
        let read = self.load.read_at(&mut text, 0).unwrap_or(0);
        let others = self.young.running(Young::part(now)).saturating_sub(1) as usize;
        running(&String::from_utf8_lossy(&text[..read])) > self.processors + 2 * others
    }
}

/// How many threads run or could.
pub(crate) fn threads_that_run() -> usize {
    running(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default())
}

/// The same by the kernel's `0.20 0.18 0.12 1/80 11206`.
fn running(load: &str) -> usize {
    let field = load.split(' ').nth(3);
    field
        .and_then(|field| field.split_once('/')?.0.parse().ok())
        .unwrap_or(0)
}

fn beat(clock: Clock) {
    loop {
        while clock.now() < clock.until.load(Ordering::Relaxed) {
            std::thread::sleep(BEAT);
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn commands_of_the_last_moment_are_counted() {
        let young = Young::default();
        let (begin, end) = (|count: u64| count + 1, |count: u64| count.saturating_sub(1));
        for began in [100, 100, 110] {
            young.count(began, begin);
        }
        assert_eq!(young.running(110), 3);
        young.count(100, end);
        assert_eq!(young.running(110), 2);
        // What runs for long is no part of the crowd; its end, when its place is another's, concerns nobody.
        assert_eq!(young.running(125), 2);
        assert_eq!(young.running(126), 1);
        young.count(132, begin);
        young.count(100, end);
        assert_eq!(young.running(135), 2);
        assert_eq!(young.running(136), 1);
    }

    #[test]
    fn the_kernels_line_is_read() {
        assert_eq!(running("0.20 0.18 0.12 11/80 11206\n"), 11);
        assert_eq!(running(""), 0);
    }

    /// How often each of its threads has slept.
    fn sleeps() -> Vec<u64> {
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
        let ours = tasks.flatten().filter(|task| {
            let name = std::fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "metronome")
        });
        ours.map(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).expect("a status");
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|line| line.trim().parse().ok())
                .expect("a number")
        })
        .collect()
    }

    #[test]
    fn it_beats_on_every_processor_while_more_runs_than_there_are() {
        let processors = atoll_jail::facts::Facts::read().processors;
        start(&processors);
        assert_eq!(sleeps().len(), processors.len());
        static OVER: AtomicBool = AtomicBool::new(false);
        let spinning: Vec<_> = (0..processors.len() * 3)
            .map(|_| {
                std::thread::spawn(|| {
                    while !OVER.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect();
        let before = sleeps();
        let begin = Instant::now();
        let beaten = || {
            let now = sleeps();
            now.iter()
                .zip(&before)
                .all(|(now, before)| now - before > 20)
        };
        while !beaten() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", sleeps());
            attend();
        }
        OVER.store(true, Ordering::Relaxed);
        for one in spinning {
            one.join().expect("it ends");
        }
    }
}
