//! When threads run, and on which processors.

use std::io;

use super::check;

/// Sets nice value and time slice of this thread and the threads it starts. Since Linux 6.12 a thread with a
/// shorter slice preempts the running one when it wakes; older kernels ignore the slice.
fn schedule(nice: i32, slice: TimeSlice) -> bool {
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: match slice {
            TimeSlice::Shortest => 100_000,
            TimeSlice::Short => 300_000,
            TimeSlice::Program => 1_000_000,
        },
        deadline: 0,
        period: 0,
    };
    // SAFETY: the attributes have the kernel's layout and live across the call.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

/// How long a thread runs at a time.
#[derive(Clone, Copy)]
enum TimeSlice {
    /// The least there is. A control group counts as its quickest member: who is to come before sandboxes must
    /// be quicker than the quickest process in them.
    Shortest,
    /// Ours in a sandbox.
    Short,
    /// The programs of sandboxes: less than the kernel's three milliseconds. Nobody else gets in before the one that runs
    /// has had its time.
    Program,
}

/// Gives this thread, and those it starts, more weight than ordinary ones, and lets them in as soon as
/// they wake; says whether it may.
pub fn raise_thread_priority() -> bool {
    schedule(-10, TimeSlice::Shortest)
}

/// Gives this process's session more weight, if it is its own. Where the kernel weighs sessions against each other, and against
/// sandboxes, a thread's own weight counts only among those of its session. A session that was there before us, with others in it, is
/// left as it is.
pub fn raise_autogroup_priority() {
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: takes and gives a number. 0 is the session of whoever never began one, or began it outside our view of processes.
    let session = unsafe { libc::getsid(0) };
    if session == own {
        let _ = std::fs::write("/proc/self/autogroup", "-10");
    }
}

/// An ordinary weight, whatever whoever started us has, but let in as soon as it wakes.
pub(crate) fn set_init_scheduling() {
    schedule(0, TimeSlice::Short);
}

/// Like every other program of a sandbox.
pub(crate) fn set_program_scheduling() {
    schedule(0, TimeSlice::Program);
}

/// Lets this thread run before all ordinary ones; says whether it may.
pub fn set_fifo_scheduling() -> bool {
    // SAFETY: the parameter is a plain number that lives across the call; it concerns this thread.
    unsafe {
        let mut parameter: libc::sched_param = std::mem::zeroed();
        parameter.sched_priority = 1;
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) == 0
    }
}

/// Lets a process, or with 0 this one, run only on these processors.
pub(crate) fn set_processors(pid: i32, processors: &[u32]) -> io::Result<()> {
    // SAFETY: CPU_SET stays inside the set for numbers below CPU_SETSIZE, which is checked.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &processor in processors {
            if (processor as usize) < libc::CPU_SETSIZE as usize {
                libc::CPU_SET(processor as usize, &mut set);
            }
        }
        check(i64::from(libc::sched_setaffinity(
            pid,
            size_of::<libc::cpu_set_t>(),
            &raw const set,
        )))?;
    }
    Ok(())
}
