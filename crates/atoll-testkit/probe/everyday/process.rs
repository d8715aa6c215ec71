//! Processes that sleep, spin, crash, become daemons, fork or ignore signals.

use std::time::{Duration, Instant};

use crate::sys::{self, Errno};
use crate::{Args, Command, Outcome, names, nr, out};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("sleep", "SECONDS", sleep),
    Command::new("spin", "SECONDS [THREADS]", spin),
    Command::new("signal", "NAME|NUMBER (kills itself)", signal),
    Command::new(
        "ignore-term",
        "SECONDS (ignores every signal that can be)",
        ignore_term,
    ),
    Command::new(
        "daemon",
        "SECONDS [PIDFILE] [hold] (hold: keeps stdin, stdout and stderr)",
        daemon,
    ),
    Command::new("tree-of-processes", "N SECONDS", tree),
    Command::new(
        "uninterruptible",
        "SECONDS (waits, as after vfork, for a child)",
        uninterruptible,
    ),
];

fn seconds(args: &Args, index: usize) -> Result<Duration, String> {
    Duration::try_from_secs_f64(args.number(index, "SECONDS")?)
        .map_err(|problem| problem.to_string())
}

fn sleep(args: &Args) -> Outcome {
    std::thread::sleep(seconds(args, 0)?);
    Ok(0)
}

fn spin(args: &Args) -> Outcome {
    let until = Instant::now() + seconds(args, 0)?;
    let turn = move || {
        let mut turns = 0_u64;
        while Instant::now() < until {
            for _ in 0..1000 {
                turns = std::hint::black_box(turns + 1);
            }
        }
        turns
    };
    let others: Vec<_> = (1..args.number_or(1, "THREADS", 1)?)
        .map(|_| std::thread::spawn(turn))
        .collect();
    let mut turns = turn();
    for other in others {
        turns += other.join().map_err(|_| "a thread failed".to_owned())?;
    }
    out::say(&format!("turns {turns}"));
    Ok(0)
}

fn signal(args: &Args) -> Outcome {
    let name = args.text(0, "NAME")?;
    let number = names::signal_number(name).ok_or_else(|| format!("no signal {name}"))?;
    let _ = sys::dispose(number, 0);
    sys::unblock_all();
    sys::kill(sys::pid(), number).map_err(|errno| format!("kill: {errno}"))?;
    Err(format!("{name} did not end this process"))
}

fn ignore_term(args: &Args) -> Outcome {
    let until = Instant::now() + seconds(args, 0)?;
    for number in 1..=64 {
        let _ = sys::dispose(number, 1);
    }
    out::say("ignoring");
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(0)
}

/// Gives up the three standard descriptors, for `/dev/null` where there is one.
pub(crate) fn let_go_of_streams() {
    let null = sys::open("/dev/null", 2);
    for fd in 0..3 {
        let _ = match &null {
            Ok(null) => sys::call(nr::DUP2, &[sys::fd(null), fd]),
            Err(_) => sys::call(nr::CLOSE, &[fd]),
        };
    }
}

/// Starts a daemon (double fork, own session) and returns its pid.
pub(crate) fn leave_behind(work: impl FnOnce()) -> Result<i32, String> {
    let failed = |step: &str, errno: Errno| format!("{step}: {errno}");
    let (from, to) = sys::pipe().map_err(|errno| failed("pipe", errno))?;
    let Some(middle) = sys::fork().map_err(|errno| failed("fork", errno))? else {
        let _ = sys::call(nr::SETSID, &[]);
        match sys::fork() {
            Ok(None) => {
                drop(from);
                let _ = out::write_all(sys::fd(&to) as i32, &sys::pid().to_le_bytes());
                drop(to);
                work();
                sys::exit(0);
            }
            Ok(Some(_)) => sys::exit(0),
            Err(errno) => sys::exit(errno.0),
        }
    };
    drop(to);
    match sys::wait(middle, 0).map_err(|errno| failed("wait", errno))? {
        Some((_, sys::Ended::Code(0))) => {}
        Some((_, sys::Ended::Code(errno))) => return Err(failed("second fork", Errno(errno))),
        _ => return Err("the child between was killed".to_owned()),
    }
    let mut pid = [0; 4];
    match sys::read(sys::fd(&from), &mut pid) {
        Ok(4) => Ok(i32::from_le_bytes(pid)),
        _ => Err("the daemon did not start".to_owned()),
    }
}

fn daemon(args: &Args) -> Outcome {
    let time = seconds(args, 0)?;
    let pidfile = args.all().get(1).filter(|word| *word != "hold");
    let hold = args.has("hold");
    let pid = leave_behind(|| {
        if !hold {
            let_go_of_streams();
        }
        std::thread::sleep(time);
    })?;
    if let Some(pidfile) = pidfile {
        std::fs::write(pidfile, format!("{pid}\n"))
            .map_err(|problem| format!("{}: {}", pidfile.display(), Errno::of(&problem)))?;
    }
    out::say(&format!("pid {pid}"));
    Ok(0)
}

/// Process `index` of a binary tree; those below it are its children. Reports its start through the pipe.
fn grow(index: u64, count: u64, ready: i32, time: Duration) {
    out::say(&format!(
        "process {} {}",
        sys::pid(),
        sys::call(nr::GETPPID, &[]).unwrap_or(0)
    ));
    let mut children = Vec::new();
    for below in [2 * index + 1, 2 * index + 2] {
        if below < count {
            match sys::fork() {
                Ok(None) => {
                    grow(below, count, ready, time);
                    sys::exit(0);
                }
                Ok(Some(child)) => children.push(child),
                Err(errno) => out::complain(&format!("fork: {errno}")),
            }
        }
    }
    let _ = out::write_all(ready, b"+");
    if index > 0 {
        std::thread::sleep(time);
    }
}

fn tree(args: &Args) -> Outcome {
    let count: u64 = args.number(0, "N")?;
    let time = seconds(args, 1)?;
    let (from, to) = sys::pipe().map_err(|errno| format!("pipe: {errno}"))?;
    grow(0, count, sys::fd(&to) as i32, time);
    let mut there = 0;
    while there < count {
        match sys::read(sys::fd(&from), &mut [0]) {
            Ok(1) => there += 1,
            Err(Errno::EINTR) => {}
            _ => return Err("the tree did not grow".to_owned()),
        }
    }
    out::say(&format!("ready {there}"));
    std::thread::sleep(time);
    while let Ok(Some(_)) = sys::wait(-1, 0) {}
    Ok(0)
}

/// The parent stands in the kernel until its child has ended.
fn uninterruptible(args: &Args) -> Outcome {
    const CLONE_VFORK: u64 = 0x4000;
    const SIGCHLD: u64 = 17;
    let time = seconds(args, 0)?;
    let child = sys::call(nr::CLONE, &[CLONE_VFORK | SIGCHLD, 0, 0, 0, 0]);
    if child.map_err(|errno| format!("clone: {errno}"))? == 0 {
        std::thread::sleep(time);
        sys::exit(0);
    }
    Ok(0)
}
