//! C01: more processes and threads than the limit allows, and processes that try to escape from cleanup.

use std::time::{Duration, Instant};

use crate::everyday::process::{leave_behind, let_go_of_streams};
use crate::sys::{Errno, Shared};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[
    Command::inside(
        "c01-forkbomb",
        "[N, 100000] (forks, then threads, until refused; cleans up)",
        forks,
    ),
    Command::inside(
        "c01-wild",
        "SECONDS (every process forks, each in its own session)",
        wild,
    ),
    Command::inside(
        "c01-daemons",
        "N (double-forked, own sessions, other names; they stay an hour)",
        daemons,
    ),
];

fn forks(args: &Args) -> Outcome {
    let most: i64 = args.number_or(0, "N", 100_000)?;
    let mut children = Vec::new();
    let mut end = None;
    while (children.len() as i64) < most {
        match sys::fork() {
            Ok(Some(child)) => children.push(child),
            Ok(None) => loop {
                let _ = sys::call(nr::PAUSE, &[]);
            },
            Err(errno) => {
                end = Some(errno);
                break;
            }
        }
    }
    report("fork", end, children.len() as i64);
    for child in &children {
        let _ = sys::kill(*child, 9);
    }
    while let Ok(Some(_)) = sys::wait(-1, 0) {}
    threads(most)
}

fn report(what: &str, end: Option<Errno>, count: i64) {
    match end {
        Some(errno) => out::refused(what, errno, &format!("count={count}")),
        None => out::ok(what, &format!("count={count}")),
    }
}

/// In a child, because memory may run out first and take the counter along.
fn threads(most: i64) -> Outcome {
    let shared = Shared::new()?;
    let Some(child) = sys::fork().map_err(|errno| format!("fork: {errno}"))? else {
        while shared.get(0) < most {
            let made = std::thread::Builder::new().stack_size(16 << 10).spawn(|| {
                loop {
                    let _ = sys::call(nr::PAUSE, &[]);
                }
            });
            if let Err(problem) = made {
                shared.set(1, i64::from(Errno::of(&problem).0));
                break;
            }
            shared.set(0, shared.get(0) + 1);
        }
        sys::exit(0);
    };
    let ended = sys::wait_or_kill(child, Duration::from_mins(1));
    match (ended, shared.get(1)) {
        (sys::Ended::Code(_), 0) => report("thread", None, shared.get(0)),
        (sys::Ended::Code(_), errno) => report("thread", Some(Errno(errno as i32)), shared.get(0)),
        _ => out::say(&format!("thread {ended} count={}", shared.get(0))),
    }
    Ok(0)
}

fn wild(args: &Args) -> Outcome {
    let until = Instant::now() + Duration::from_secs(args.number(0, "SECONDS")?);
    let shared = Shared::new()?;
    let root = sys::pid();
    while Instant::now() < until {
        match sys::fork() {
            Ok(None) => {
                let _ = sys::call(nr::SETSID, &[]);
                shared.set(0, shared.get(0) + 1);
            }
            Ok(Some(_)) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    if sys::pid() == root {
        out::ok("wild", &format!("forks={}", shared.get(0)));
    }
    Ok(0)
}

fn daemons(args: &Args) -> Outcome {
    const PR_SET_NAME: u64 = 15;
    let mut made = 0;
    for number in 0..args.number::<u64>(0, "N")? {
        let name = std::ffi::CString::new(format!("kworker/{number}")).unwrap_or_default();
        let daemon = leave_behind(|| {
            let _ = sys::call(nr::PRCTL, &[PR_SET_NAME, sys::text(&name)]);
            for signal in 1..=64 {
                let _ = sys::dispose(signal, 1);
            }
            let_go_of_streams();
            std::thread::sleep(Duration::from_hours(1));
        });
        match daemon {
            Ok(pid) => {
                made += 1;
                out::ok("daemon", &pid.to_string());
            }
            Err(problem) => out::say(&format!("daemon skipped {problem}")),
        }
    }
    out::ok("ready", &format!("count={made}"));
    Ok(0)
}
