//! Scheduling of threads: priority, time slice, policy, CPU affinity.

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

/// Time slice of a thread.
#[derive(Clone, Copy)]
enum TimeSlice {
    /// The kernel's minimum. A cgroup is scheduled by its member with the shortest slice: a thread that must preempt
    /// sandboxes needs a shorter slice than any process in them.
    Shortest,
    /// For PID 1 and file helpers.
    Short,
    /// For programs of sandboxes: less than the kernel's default of three milliseconds.
    Program,
}

/// Raises the weight of this thread and its children and gives them the shortest slice, so that they preempt on
/// wake-up; false if not permitted.
pub fn raise_thread_priority() -> bool {
    schedule(-10, TimeSlice::Shortest)
}

/// Gives this process's session more weight, if it is its own. Where the kernel weighs sessions against each other, and against
/// sandboxes, a thread's own weight counts only among those of its session. A session that was there before us, with others in it, is
/// left as it is.
pub fn raise_autogroup_priority() {
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: no memory is involved. 0: the session began outside this pid namespace, or there is none.
    let session = unsafe { libc::getsid(0) };
    if session == own {
        let _ = std::fs::write("/proc/self/autogroup", "-10");
    }
}

/// Default weight, whatever the parent has, with a short slice.
pub(crate) fn set_init_scheduling() {
    schedule(0, TimeSlice::Short);
}

/// Default weight and slice for programs of a sandbox.
pub(crate) fn set_program_scheduling() {
    schedule(0, TimeSlice::Program);
}

/// Sets `SCHED_FIFO` for this thread; false if not permitted.
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
