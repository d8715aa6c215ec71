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

/// One for all runtimes of this process: what is scheduled is the machine's.
static METRONOME: OnceLock<Option<Metronome>> = OnceLock::new();

struct Metronome {
    clock: Clock,
    processors: usize,
    load: File,
    threads: Vec<Thread>,
    /// When the next look is due.
    look: AtomicU64,
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
        if self.is_crowded() {
            let until = now + micros(PHRASE);
            self.clock.until.store(until, Ordering::Relaxed);
            self.threads.iter().for_each(Thread::unpark);
        }
    }

    /// More wants to run than there are processors, beside what commands that have just begun have a part in: each by its program and its
    /// PID 1.
    fn is_crowded(&self) -> bool {
        let mut text = [0; 128];
        let read = self.load.read_at(&mut text, 0).unwrap_or(0);
        let others = crate::crowd::young().saturating_sub(1) as usize;
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
