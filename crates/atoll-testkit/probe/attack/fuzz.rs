//! B06: random system calls, in children that live for one batch of them.
//!
//! The parent draws a batch of calls, and a child makes them. Only the parent counts, in memory that it shares with no child:
//! the whole batch if the child exits with the code that follows its last call, and otherwise the first call alone. A
//! child that overwrites, unmaps or kills what it can reach does not change the count. The parent ignores every signal that
//! can be ignored, and children do not draw its pid. If it is killed all the same, the command ends and the test starts
//! another.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Nook;
use crate::everyday::process::let_go_of_streams;
use crate::sys::{Ended, HERE};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::inside(
    "b06-fuzz",
    "SECONDS SEED NUMBER,… (random calls of these numbers)",
    fuzz,
)];

/// Calls of one child. Few, because many calls end or block their process.
const BATCH: usize = 16;
/// The exit code of a child that has made its whole batch.
const DONE: i32 = 77;
/// Children draw pids below this one.
const NAMED_PIDS: i32 = 5000;
/// How long a child may sleep in a call, and how long it may run.
const SLEEP: Duration = Duration::from_millis(2);
const RUN: Duration = Duration::from_secs(1);
/// Made once a round only: it writes back the cache of the whole host.
const RARE: [u64; 1] = [nr::SYNC];

const WNOHANG: u64 = 1;
const WALL: u64 = 0x4000_0000;
const SIGKILL: i32 = 9;
const SIGCHLD: i32 = 17;

/// Random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64, batch: u64) -> Self {
        let mixed = (seed ^ batch.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(batch);
        let mut random = Self(mixed | 1);
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, below: u64) -> u64 {
        (self.next() >> 11) % below
    }
}

#[derive(Clone, Copy)]
struct Call {
    number: u64,
    words: [u64; 6],
}

/// The memory that pointers lead to: paths first, then random bytes.
struct Arena(Vec<u8>);

impl Arena {
    const SIZE: usize = 64 << 10;
    /// Size of each buffer, with its pointer.
    const ROOM: usize = 32;
    /// None of them leads to a stream of the parent.
    const PATHS: [&str; 24] = [
        "f0",
        "f1",
        "f2",
        "d",
        "d/f",
        ".",
        "..",
        "/",
        "",
        "/tmp/f",
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "/dev/ptmx",
        "/dev/tty",
        "/dev/shm/f",
        "/dev/mqueue/f0",
        "/proc",
        "/proc/self/mem",
        "/proc/self/maps",
        "/proc/self/ns/net",
        "/proc/1/mem",
        "/proc/sys/kernel/hostname",
        "/sys",
    ];

    fn new() -> Self {
        let mut bytes = vec![0; Self::SIZE];
        for (path, room) in Self::PATHS.iter().zip(bytes.chunks_mut(Self::ROOM)) {
            room[..path.len()].copy_from_slice(path.as_bytes());
        }
        Self(bytes)
    }

    /// Makes some of it other bytes.
    fn change(&mut self, random: &mut Random) {
        let first = Self::PATHS.len() * Self::ROOM;
        let at = first + random.below((Self::SIZE - first - 512) as u64) as usize;
        for word in self.0[at..at + 512].chunks_mut(8) {
            // Lengths, descriptors and flags are small in most structures.
            let value = match random.below(3) {
                0 => random.next(),
                1 => random.below(64),
                _ => 0,
            };
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }

    fn pointer(&self, random: &mut Random) -> u64 {
        let base = sys::slice(&self.0);
        match random.below(4) {
            0 => base + random.below(Self::PATHS.len() as u64) * Self::ROOM as u64,
            1 => base + random.below(Self::SIZE as u64),
            _ => base + random.below(Self::SIZE as u64 / 8) * 8,
        }
    }

    fn word(&self, random: &mut Random) -> u64 {
        const ODD: [u64; 10] = [
            0,
            1,
            4096,
            HERE,
            u64::MAX,
            u32::MAX as u64,
            i32::MAX as u64,
            i64::MAX as u64,
            // Not canonical, and of the kernel.
            0x0000_8000_0000_0000,
            0xffff_8880_0000_0000,
        ];
        match random.below(16) {
            0..=3 => random.below(24),
            4..=8 => self.pointer(random),
            9 => random.below(512),
            10 => 1 << random.below(64),
            11 => (1_u64 << random.below(64)) - 1,
            12 => 1 << random.below(16) | 1 << random.below(16),
            13 => ODD[random.below(ODD.len() as u64) as usize],
            14 => random.next() >> 32,
            _ => random.next(),
        }
    }

    fn call(&self, random: &mut Random, number: u64) -> Call {
        const ALL: u64 = 0xffff_ffff;
        let mut words = [0; 6];
        words.fill_with(|| self.word(random));
        // Pid -1 is every process, the parent too: that is no gain, a user may end their own processes.
        if number == nr::KILL && words[0] & ALL == ALL {
            words[0] = 0;
        }
        Call { number, words }
    }
}

/// The first number is given, so that each has its turn; the others are random.
fn draw(random: &mut Random, arena: &Arena, numbers: &[u64], first: u64) -> [Call; BATCH] {
    let mut calls = [Call {
        number: first,
        words: [0; 6],
    }; BATCH];
    for (index, call) in calls.iter_mut().enumerate() {
        let mut number = first;
        while index > 0 && (number == first || RARE.contains(&number)) {
            number = numbers[random.below(numbers.len() as u64) as usize];
        }
        *call = arena.call(random, number);
    }
    calls
}

/// Whether a process that makes these calls may end like one that has made all of them.
fn is_ambiguous(calls: &[Call]) -> bool {
    calls.iter().any(|call| {
        [nr::EXIT, nr::EXIT_GROUP].contains(&call.number) && call.words[0] & 0xff == DONE as u64
    })
}

fn make(calls: &[Call]) -> ! {
    let _ = sys::call(nr::SETSID, &[]);
    let_go_of_streams();
    sys::unblock_all();
    for call in calls {
        sys::raw(call.number, call.words);
    }
    sys::exit(DONE)
}

/// Waits for a child; `None` if it would never end.
fn wait(child: i32) -> Option<Ended> {
    let until = Instant::now() + RUN;
    let mask = 1_u64 << (SIGCHLD - 1);
    let sleep = [0, SLEEP.as_nanos() as u64];
    loop {
        let heard = sys::call(
            nr::RT_SIGTIMEDWAIT,
            &[sys::refer(&mask), 0, sys::slice(&sleep), 8],
        );
        match sys::wait(child, WNOHANG | WALL) {
            Ok(Some((_, Ended::Stopped(_)))) | Err(_) => return None,
            Ok(Some((_, ended))) => return Some(ended),
            // The signal may have been another process's.
            Ok(None) if heard.is_ok() => {}
            Ok(None) if is_running(child) && Instant::now() < until => {}
            Ok(None) => return None,
        }
    }
}

/// Whether a process wants the processor, or has it.
fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// Kills all processes that a batch left. Orphans are reparented to this process.
fn end_all() {
    loop {
        match sys::wait(-1, WNOHANG | WALL) {
            Ok(Some((pid, Ended::Stopped(_)))) => {
                let _ = sys::kill(pid, SIGKILL);
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                // All processes that we may signal, except this one and PID 1.
                let _ = sys::kill(-1, SIGKILL);
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(_) => return,
        }
    }
}

/// Removes the System V objects, which outlive their makers and would fill the sandbox's memory.
fn clear_objects() {
    const IPC_RMID: u64 = 0;
    for (kind, words) in [
        ("msg", [nr::MSGCTL, 1, 2]),
        ("shm", [nr::SHMCTL, 1, 2]),
        ("sem", [nr::SEMCTL, 2, 1]),
    ] {
        let list = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        for line in list.lines().skip(1) {
            let id = line.split_whitespace().nth(1);
            let Some(id) = id.and_then(|id| id.parse::<u64>().ok()) else {
                continue;
            };
            let mut arguments = [id, 0, 0];
            // The command is the second argument, of semctl the third.
            arguments[words[1] as usize] = IPC_RMID;
            let _ = sys::call(words[0], &arguments);
        }
    }
}

/// Opens a descriptor of each kind for the children. Those that cannot be opened are missing.
fn descriptors() -> Vec<Result<u64, sys::Errno>> {
    const UNIX: u64 = 1;
    const INET: u64 = 2;
    let mut pair = [0_i32; 2];
    let mut opened = vec![
        sys::call(nr::PIPE2, &[sys::slice_mut(&mut pair), 0]),
        sys::call(nr::SOCKETPAIR, &[UNIX, 1, 0, sys::slice_mut(&mut pair)]),
        sys::call(nr::SOCKET, &[INET, 2, 0]),
        sys::call(nr::SOCKET, &[INET, 1, 0]),
        sys::call(nr::SOCKET, &[UNIX, 2, 0]),
        sys::call(nr::EVENTFD2, &[0, 0]),
        sys::call(nr::EPOLL_CREATE1, &[0]),
        sys::call(nr::TIMERFD_CREATE, &[1, 0]),
        sys::call(nr::INOTIFY_INIT1, &[0]),
        sys::call(nr::MEMFD_CREATE, &[sys::text(c"fuzz"), 2]),
    ];
    for (path, flags) in [
        (c"f0", 0o102),
        (c".", 0),
        (c"/dev/zero", 2),
        (c"/dev/urandom", 0),
        (c"/dev/ptmx", 2),
        (c"/proc/self/status", 0),
    ] {
        opened.push(sys::call(
            nr::OPENAT,
            &[HERE, sys::text(path), flags, 0o600],
        ));
    }
    opened
}

/// Limits the files and core dumps of children, and makes this process hard to end.
fn prepare() {
    const RLIMIT_FSIZE: u64 = 1;
    const RLIMIT_CORE: u64 = 4;
    const PR_SET_CHILD_SUBREAPER: u64 = 36;
    // A limit of one byte is also kept where the host has a program for core dumps.
    for (resource, limit) in [(RLIMIT_FSIZE, 1 << 20), (RLIMIT_CORE, 1_u64)] {
        let limits = [limit; 2];
        let _ = sys::call(nr::PRLIMIT64, &[0, resource, sys::slice(&limits), 0]);
    }
    let _ = sys::call(nr::PRCTL, &[PR_SET_CHILD_SUBREAPER, 1]);
    for signal in (1..=64).filter(|signal| *signal != SIGCHLD) {
        let _ = sys::dispose(signal, 1);
    }
    let mask = 1_u64 << (SIGCHLD - 1);
    let _ = sys::call(nr::RT_SIGPROCMASK, &[0, sys::refer(&mask), 0, 8]);
}

/// Makes later processes of the sandbox get pids that children do not draw.
fn use_up_pids() -> Result<(), String> {
    loop {
        match sys::fork().map_err(|errno| format!("fork: {errno}"))? {
            None => sys::exit(0),
            Some(child) => {
                let _ = sys::wait(child, 0);
                if child > NAMED_PIDS {
                    return Ok(());
                }
            }
        }
    }
}

fn fuzz(args: &Args) -> Outcome {
    let begin = Instant::now();
    let seconds = Duration::from_secs(args.number(0, "SECONDS")?);
    let seed = args.number(1, "SEED")?;
    let numbers = args.text(2, "NUMBER")?.split(',').map(str::parse::<u64>);
    let numbers: Vec<u64> = numbers
        .collect::<Result<_, _>>()
        .map_err(|_| "NUMBER,… is no list of numbers".to_owned())?;
    if sys::pid() <= NAMED_PIDS {
        use_up_pids()?;
        out::ok("pids", "");
        return Ok(0);
    }
    let nook = Nook::new().ok_or("no directory can be made")?;
    let _ = sys::call(nr::CHDIR, &[sys::text(&sys::c_path(&nook.0))]);
    let _descriptors = descriptors();
    prepare();
    let mut arena = Arena::new();
    let (mut calls, mut whole, mut batch, mut reported) = (0_u64, 0_u64, 0_u64, 0);
    let mut covered = BTreeSet::new();
    while begin.elapsed() < seconds {
        let mut random = Random::new(seed, batch);
        arena.change(&mut random);
        let first = numbers[(batch % numbers.len() as u64) as usize];
        let drawn = draw(&mut random, &arena, &numbers, first);
        match sys::fork() {
            Ok(None) => make(&drawn),
            // There are too many processes, or they are too large.
            Err(_) => end_all(),
            Ok(Some(child)) => {
                let ended = wait(child);
                if ended != Some(Ended::Code(DONE)) {
                    end_all();
                }
                let made = match ended {
                    Some(Ended::Code(DONE)) if !is_ambiguous(&drawn) => {
                        whole += 1;
                        BATCH
                    }
                    _ => 1,
                };
                calls += made as u64;
                covered.extend(drawn[..made].iter().map(|call| call.number));
            }
        }
        batch += 1;
        if batch.is_multiple_of(64) {
            end_all();
            clear_objects();
        }
        if begin.elapsed().as_secs() > reported {
            reported = begin.elapsed().as_secs();
            report(calls, whole, batch, &covered);
        }
    }
    end_all();
    report(calls, whole, batch, &covered);
    Ok(0)
}

fn report(calls: u64, whole: u64, batches: u64, covered: &BTreeSet<u64>) {
    let covered: Vec<String> = covered.iter().map(u64::to_string).collect();
    let covered = covered.join(",");
    out::ok(
        "fuzz",
        &format!("calls={calls} batches={batches} whole={whole} covered={covered}"),
    );
}
