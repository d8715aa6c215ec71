//! Tracing between processes of one sandbox must work: gdb and strace depend on it.

use std::time::Duration;

use crate::sys::{Ended, call, fork, refer, refer_mut, slice, wait};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::new(
    "ptrace-child",
    "(TRACEME, attach to a sibling, read its memory)",
    trace,
)];

const TRACEME: u64 = 0;
const PEEKDATA: u64 = 2;
const CONT: u64 = 7;
const ATTACH: u64 = 16;
const DETACH: u64 = 17;
const SIGSTOP: i32 = 19;
const ANY_CHILD: u64 = 0x4000_0000;

static MARK: u64 = 0x6174_6f6c_6c70_726f;

fn peek(what: &str, pid: i32) {
    let mut word = 0_u64;
    let address = refer(&MARK);
    match call(
        nr::PTRACE,
        &[PEEKDATA, pid as u64, address, refer_mut(&mut word)],
    ) {
        Ok(_) => out::ok(what, &format!("{word:#x} same={}", word == MARK)),
        Err(errno) => out::refused(what, errno, ""),
    }
}

fn traceme() -> Result<(), String> {
    let Some(child) = fork().map_err(|errno| format!("fork: {errno}"))? else {
        let answer = call(nr::PTRACE, &[TRACEME, 0, 0, 0]);
        if out::attempt("traceme", answer) {
            let _ = sys::kill(sys::pid(), SIGSTOP);
        }
        sys::exit(0);
    };
    if let Ok(Some((_, Ended::Stopped(SIGSTOP)))) = wait(child, 0) {
        peek("traceme:peek", child);
        out::attempt(
            "traceme:continue",
            call(nr::PTRACE, &[CONT, child as u64, 0, 0]),
        );
        let ended = sys::wait_or_kill(child, Duration::from_secs(2));
        out::ok("traceme:end", &ended.to_string());
    }
    Ok(())
}

fn siblings() -> Result<(), String> {
    let Some(target) = fork().map_err(|errno| format!("fork: {errno}"))? else {
        std::thread::sleep(Duration::from_secs(20));
        sys::exit(0);
    };
    sys::apart("sibling", || {
        if out::attempt(
            "sibling:attach",
            call(nr::PTRACE, &[ATTACH, target as u64, 0, 0]),
        ) {
            let _ = wait(target, ANY_CHILD);
            peek("sibling:peek", target);
            out::attempt(
                "sibling:detach",
                call(nr::PTRACE, &[DETACH, target as u64, 0, 0]),
            );
        }
        let mut word = 0_u64;
        let (local, remote) = ([refer_mut(&mut word), 8], [refer(&MARK), 8]);
        let words = [target as u64, slice(&local), 1, slice(&remote), 1, 0];
        match call(nr::PROCESS_VM_READV, &words) {
            Ok(_) => out::ok(
                "sibling:process_vm_readv",
                &format!("{word:#x} same={}", word == MARK),
            ),
            Err(errno) => out::refused("sibling:process_vm_readv", errno, ""),
        }
    });
    let _ = sys::kill(target, 9);
    let _ = wait(target, 0);
    Ok(())
}

fn trace(_: &Args) -> Outcome {
    traceme()?;
    siblings()?;
    Ok(0)
}
