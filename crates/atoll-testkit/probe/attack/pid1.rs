//! A17: attacks on the sandbox's PID 1 from inside.

use std::fs;

use crate::sys::{Errno, fd, owned, refer, slice, slice_mut};
use crate::{Args, Command, Outcome, names, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::inside(
    "a17-pid1",
    "(signals, ptrace, memory, descriptors of pid 1; kill of all)",
    attack,
)];

fn state() -> Result<String, Errno> {
    let text = fs::read_to_string("/proc/1/stat").map_err(|problem| Errno::of(&problem))?;
    Ok(text
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.split(' ').next())
        .unwrap_or("?")
        .to_owned())
}

fn report_state(what: &str) {
    match state() {
        Ok(state) => out::ok(what, &format!("state={state}")),
        Err(errno) => out::refused(what, errno, ""),
    }
}

fn memory() {
    const SEIZE: u64 = 0x4206;
    const ATTACH: u64 = 16;
    const DETACH: u64 = 17;
    for (name, request) in [("seize", SEIZE), ("attach", ATTACH)] {
        if out::attempt(
            &format!("ptrace:{name}:1"),
            sys::call(nr::PTRACE, &[request, 1, 0, 0]),
        ) {
            if request == ATTACH {
                let _ = sys::wait(1, 0x4000_0000);
            }
            let _ = sys::call(nr::PTRACE, &[DETACH, 1, 0, 0]);
        }
    }
    let mut byte = [0_u8; 8];
    let local = [slice_mut(&mut byte), 8];
    // Its image is mapped low or high; a wrong guess is EFAULT, a refusal is EPERM.
    let remote = [0x40_0000_u64, 8];
    for (name, number) in [
        ("process_vm_readv", nr::PROCESS_VM_READV),
        ("process_vm_writev", nr::PROCESS_VM_WRITEV),
    ] {
        // Writing goes to address 0: EFAULT if it were allowed.
        let remote = if name == "process_vm_writev" {
            [0, 8]
        } else {
            remote
        };
        out::attempt(
            &format!("{name}:1"),
            sys::call(number, &[1, slice(&local), 1, slice(&remote), 1, 0]),
        );
    }
}

fn handles() {
    let handle = sys::call(nr::PIDFD_OPEN, &[1, 0]);
    out::attempt("pidfd_open:1", handle);
    if let Ok(handle) = handle.map(owned) {
        for number in 0..10 {
            let stolen = sys::call(nr::PIDFD_GETFD, &[fd(&handle), number, 0]);
            out::attempt(&format!("pidfd_getfd:1:{number}"), stolen);
            let _ = stolen.map(owned);
        }
        out::attempt(
            "pidfd_send_signal:1:SIGKILL",
            sys::call(nr::PIDFD_SEND_SIGNAL, &[fd(&handle), 9, 0, 0]),
        );
        out::attempt(
            "setns:pidfd:1",
            sys::call(nr::SETNS, &[fd(&handle), 0x0002_0000]),
        );
    }
    let mut limit = [0_u64; 2];
    out::attempt(
        "prlimit-get:1",
        sys::call(nr::PRLIMIT64, &[1, 7, 0, slice_mut(&mut limit)]),
    );
    // Set to what they are: the permission is the finding.
    out::attempt(
        "prlimit-set:1",
        sys::call(nr::PRLIMIT64, &[1, 7, slice(&limit), 0]),
    );
    out::attempt("setpriority:1", sys::call(nr::SETPRIORITY, &[0, 1, 0]));
    let mut mask = [0_u64; 128];
    let _ = sys::call(nr::SCHED_GETAFFINITY, &[1, 1024, slice_mut(&mut mask)]);
    out::attempt(
        "sched_setaffinity:1",
        sys::call(nr::SCHED_SETAFFINITY, &[1, 1024, slice(&mask)]),
    );
    let priority = 0_i32;
    out::attempt(
        "sched_setscheduler:1",
        sys::call(nr::SCHED_SETSCHEDULER, &[1, 0, refer(&priority)]),
    );
    out::attempt(
        "kcmp:1",
        sys::call(nr::KCMP, &[1, sys::pid() as u64, 2, 0, 0]),
    );
}

fn attack(_: &Args) -> Outcome {
    report_state("before");
    memory();
    handles();
    for number in (1..=64).filter(|number| ![32, 33].contains(number)) {
        out::attempt(
            &format!("kill:1:{}", names::signal(number)),
            sys::kill(1, number),
        );
    }
    report_state("after-signals");
    out::attempt("kill:-1:SIGKILL", sys::kill(-1, 9));
    report_state("after-all");
    Ok(0)
}
