//! The records that the host's kernel logs while a test runs.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

const PATH: &str = "/dev/kmsg";

/// Parts of the lines that report a bug of the kernel. Lines about programs that crashed, or that were killed for their
/// memory, contain none of them.
const ALARMS: &[&str] = &[
    "BUG: ",
    "WARNING: ",
    "Oops",
    "Kernel panic",
    "[ cut here ]",
    "KASAN",
    "UBSAN",
    "KCSAN",
    "refcount_t: ",
    "list_add corruption",
    "list_del corruption",
    "soft lockup",
    "hard LOCKUP",
    "self-detected stall",
    "detected stalls on CPUs",
    "blocked for more than",
    "unable to handle",
    "Bad page state",
    "Bad rss-counter state",
    "general protection fault, probably",
];

/// Reads every record once. The kernel drops old records, so it must be read often.
pub(super) struct KernelLog(File);

impl KernelLog {
    pub(super) fn open() -> Self {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let opened = File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(PATH);
        let mut log = opened.unwrap_or_else(|error| {
            panic!("the kernel log cannot be read, so its complaints cannot be checked: {PATH}: {error}")
        });
        let end = log.seek(SeekFrom::End(0));
        end.unwrap_or_else(|error| {
            panic!("the kernel log cannot be read from its end: {PATH}: {error}")
        });
        Self(log)
    }

    /// Fails if the kernel complained since the last check.
    pub(super) fn check(&mut self) {
        let mut complaints = Vec::new();
        let mut record = [0; 16 << 10];
        loop {
            match self.0.read(&mut record) {
                Ok(length) => {
                    let record = String::from_utf8_lossy(&record[..length]);
                    complaints.extend(complaint(&record).map(str::to_owned));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // EPIPE: records were dropped.
                Err(error) => panic!("the kernel log was not read to its end: {PATH}: {error}"),
            }
        }
        assert!(
            complaints.is_empty(),
            "the kernel complains: {complaints:#?}"
        );
    }
}

/// The text of a record in which the kernel complains.
fn complaint(record: &str) -> Option<&str> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    // Programs log by other facilities.
    let is_kernels = priority >> 3 == 0;
    let text = text.lines().next()?;
    let alarms = ALARMS.iter().any(|alarm| text.contains(alarm));
    (is_kernels && alarms).then_some(text)
}

#[test]
fn complaints_of_the_kernel_are_told_from_the_ends_of_programs() {
    for text in [
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "WARNING: CPU: 1 PID: 4711 at kernel/fork.c:1 copy_process+0x1/0x2",
        "Oops: 0000 [#1] PREEMPT SMP",
        "refcount_t: underflow; use-after-free.",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [probe:4711]",
        "INFO: task probe:4711 blocked for more than 120 seconds.",
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
    ] {
        assert!(complaint(&format!("4,1,2,-;{text}\n")).is_some(), "{text}");
        // As a program wrote it.
        assert_eq!(complaint(&format!("12,1,2,-;{text}\n")), None, "{text}");
    }
    for text in [
        "probe[4711]: segfault at 0 ip 0000000000401000 sp 00007ffc0 error 4 in probe[401000+1000]",
        "traps: probe[4711] general protection fault ip:401000 sp:7ffc0 error:0 in probe[401000+1000]",
        "probe invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "Call Trace:",
        "Memory cgroup out of memory: Killed process 4711 (probe) total-vm:1kB",
    ] {
        assert_eq!(complaint(&format!("6,1,2,-;{text}\n")), None, "{text}");
    }
}
