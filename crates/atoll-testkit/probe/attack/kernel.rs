//! B02, B04: system calls that a sandbox does not need. Arguments are chosen so that a permitted call has no
//! effect: its result (EINVAL, EFAULT, ENOENT, EBADF, ok) differs from that of a denied call (EPERM, ENOSYS).

use crate::sys::{HERE, call, owned, slice, slice_mut, text};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("b02-uring", "", uring),
    Command::inside("b04-kernel", "[PID to ptrace and read]", calls),
];

const BAD: u64 = u64::MAX;

fn uring(_: &Args) -> Outcome {
    let mut parameters = [0_u8; 120];
    let ring = call(nr::IO_URING_SETUP, &[4, slice_mut(&mut parameters)]);
    out::attempt("io_uring_setup", ring);
    let ring = ring.map(owned);
    let number = ring.as_ref().map_or(BAD, sys::fd);
    out::attempt(
        "io_uring_enter",
        call(nr::IO_URING_ENTER, &[number, 0, 0, 0, 0, 0]),
    );
    out::attempt(
        "io_uring_register",
        call(
            nr::IO_URING_REGISTER,
            &[number, 8, slice_mut(&mut parameters), 1],
        ),
    );
    let mut context = 0_u64;
    out::attempt(
        "io_setup",
        call(nr::IO_SETUP, &[1, sys::refer_mut(&mut context)]),
    );
    Ok(0)
}

/// An attempt that returns a file descriptor on success.
fn opening(what: &str, answer: Result<u64, sys::Errno>) {
    out::attempt(what, answer);
    let _ = answer.map(owned);
}

fn programs_and_modules() {
    let zeros = [0_u64; 16];
    opening("bpf:map-create", call(nr::BPF, &[0, slice(&zeros), 72]));
    opening("bpf:prog-load", call(nr::BPF, &[5, slice(&zeros), 72]));
    // A software event of this process, user space only.
    let event = [1_u32, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0x60, 0, 0, 0, 0, 0];
    opening(
        "perf_event_open",
        call(nr::PERF_EVENT_OPEN, &[slice(&event), 0, BAD, BAD, 0]),
    );
    opening("userfaultfd", call(nr::USERFAULTFD, &[0]));
    opening("userfaultfd:user-mode", call(nr::USERFAULTFD, &[1]));
    out::attempt("kexec_load", call(nr::KEXEC_LOAD, &[0, 1, 0, 0xffff]));
    out::attempt(
        "kexec_file_load",
        call(nr::KEXEC_FILE_LOAD, &[BAD, BAD, 0, 0, 0xffff]),
    );
    out::attempt("init_module", call(nr::INIT_MODULE, &[0, 0, text(c"")]));
    out::attempt("finit_module", call(nr::FINIT_MODULE, &[BAD, text(c""), 0]));
    out::attempt(
        "delete_module",
        call(nr::DELETE_MODULE, &[text(c"atoll_probe_none"), 0]),
    );
    opening("memfd_secret", call(nr::MEMFD_SECRET, &[0]));
    opening("fanotify_init", call(nr::FANOTIFY_INIT, &[0, 0]));
    // The kernel allows these without privileges.
    opening("fanotify_init:fid", call(nr::FANOTIFY_INIT, &[0x200, 0]));
}

fn keys() {
    const PROCESS_KEYRING: u64 = -2_i64 as u64;
    const SESSION_KEYRING: u64 = -3_i64 as u64;
    let words = [
        text(c"user"),
        text(c"atoll-probe"),
        text(c"x"),
        1,
        PROCESS_KEYRING,
    ];
    out::attempt("add_key", call(nr::ADD_KEY, &words));
    out::attempt("keyctl", call(nr::KEYCTL, &[0, SESSION_KEYRING, 0]));
    out::attempt(
        "request_key",
        call(
            nr::REQUEST_KEY,
            &[text(c"user"), text(c"atoll-probe-none"), 0, 0],
        ),
    );
}

fn machine() {
    const Q_GETFMT: u64 = 0x80_0004 << 8;
    let me = sys::pid() as u64;
    out::attempt("kcmp", call(nr::KCMP, &[me, me, 2, 0, 0]));
    sys::apart("personality", || {
        out::attempt("personality:get", call(nr::PERSONALITY, &[0xffff_ffff]));
        out::attempt(
            "personality:ADDR_NO_RANDOMIZE",
            call(nr::PERSONALITY, &[0x0004_0000]),
        );
        out::attempt("personality:PER_LINUX32", call(nr::PERSONALITY, &[8]));
    });
    let none = c"/atoll-probe-none";
    let mut format = 0_u32;
    out::attempt(
        "quotactl",
        call(
            nr::QUOTACTL,
            &[Q_GETFMT, text(none), 0, sys::refer_mut(&mut format)],
        ),
    );
    out::attempt(
        "quotactl_fd",
        call(
            nr::QUOTACTL_FD,
            &[BAD, Q_GETFMT, 0, sys::refer_mut(&mut format)],
        ),
    );
    out::attempt("acct", call(nr::ACCT, &[text(none)]));
    out::attempt("swapon", call(nr::SWAPON, &[text(none), 0]));
    out::attempt("swapoff", call(nr::SWAPOFF, &[text(none)]));
    out::attempt("reboot", call(nr::REBOOT, &[0, 0, 0, 0]));
    let mut line = [0_u8; 16];
    out::attempt("syslog", call(nr::SYSLOG, &[3, slice_mut(&mut line), 16]));
    out::attempt("sethostname", call(nr::SETHOSTNAME, &[text(none), BAD]));
    out::attempt("setdomainname", call(nr::SETDOMAINNAME, &[text(none), BAD]));
    sys::apart("vhangup", || {
        // Without a terminal it hangs up nothing.
        let _ = call(nr::SETSID, &[]);
        out::attempt("vhangup", call(nr::VHANGUP, &[]));
    });
    sys::apart("ports", || {
        out::attempt("iopl", call(nr::IOPL, &[3]));
        out::attempt("ioperm", call(nr::IOPERM, &[0x80, 1, 1]));
    });
    let mut table = [0_u8; 16];
    out::attempt(
        "modify_ldt",
        call(nr::MODIFY_LDT, &[0, slice_mut(&mut table), 16]),
    );
}

fn clocks() {
    // Each is invalid: a permitted call is EINVAL. The kernel looks at the time zone only after the permission.
    let time = [0_i64, 2_000_000];
    let zone = [9_999_999_i32, 0];
    out::attempt(
        "settimeofday:time",
        call(nr::SETTIMEOFDAY, &[slice(&time), 0]),
    );
    out::attempt(
        "settimeofday:zone",
        call(nr::SETTIMEOFDAY, &[0, slice(&zone)]),
    );
    let moment = [0_i64, -1];
    out::attempt(
        "clock_settime",
        call(nr::CLOCK_SETTIME, &[0, slice(&moment)]),
    );
    // ADJ_SETOFFSET | ADJ_NANO with an impossible fraction of a second.
    let mut adjust = [0_i64; 26];
    adjust[0] = 0x2100;
    adjust[10] = -1;
    out::attempt("adjtimex", call(nr::ADJTIMEX, &[slice_mut(&mut adjust)]));
    out::attempt(
        "clock_adjtime",
        call(nr::CLOCK_ADJTIME, &[0, slice_mut(&mut adjust)]),
    );
}

fn handles() {
    // A handle of 8 bytes, of type 1, that names nothing.
    let handle = [8_u32, 1, 0, 0, 0, 0];
    let root = sys::open("/", 0o200_000);
    let root = root.as_ref().map_or(HERE, sys::fd);
    opening(
        "open_by_handle_at",
        call(nr::OPEN_BY_HANDLE_AT, &[root, slice(&handle), 0]),
    );
    let mut room = [0_u32; 34];
    room[0] = 128;
    let mut mount = 0_i32;
    let words = [
        HERE,
        text(c"/"),
        slice_mut(&mut room),
        sys::refer_mut(&mut mount),
        0,
    ];
    out::attempt("name_to_handle_at", call(nr::NAME_TO_HANDLE_AT, &words));
}

fn other_process(pid: u64) {
    const SEIZE: u64 = 0x4206;
    const DETACH: u64 = 17;
    if out::attempt(
        &format!("ptrace:{pid}"),
        call(nr::PTRACE, &[SEIZE, pid, 0, 0]),
    ) {
        let _ = call(nr::PTRACE, &[DETACH, pid, 0, 0]);
    }
    let mut bytes = [0_u8; 8];
    let local = [slice_mut(&mut bytes), 8];
    let remote = [0x40_0000_u64, 8];
    out::attempt(
        &format!("process_vm_readv:{pid}"),
        call(
            nr::PROCESS_VM_READV,
            &[pid, slice(&local), 1, slice(&remote), 1, 0],
        ),
    );
    out::attempt(&format!("kill:{pid}"), call(nr::KILL, &[pid, 0]));
}

fn calls(args: &Args) -> Outcome {
    programs_and_modules();
    keys();
    machine();
    clocks();
    handles();
    if !args.all().is_empty() {
        other_process(args.number(0, "PID")?);
    }
    Ok(0)
}
