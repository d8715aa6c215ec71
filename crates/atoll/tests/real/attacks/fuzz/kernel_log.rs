//! Records that the host's kernel logs during a test.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PATH: &str = "/dev/kmsg";

/// Substrings of lines that report a kernel bug. Lines about crashed or OOM-killed processes have
/// none of them.
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

/// Name prefix of the fuzzer's processes. Tasks of other tests may wait for their disks.
const OURS: &str = "probe";
/// Interval between two reads. It is short because the kernel drops old records.
const INTERVAL: Duration = Duration::from_millis(5);

/// Reads every record once, in a separate thread.
pub(super) struct KernelLog {
    complaints: Arc<Mutex<Vec<String>>>,
    /// The thread ends when this value is dropped.
    _reads: Arc<()>,
}

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
        let (complaints, reads) = (Arc::default(), Arc::new(()));
        let (shared, wanted) = (Arc::clone(&complaints), Arc::downgrade(&reads));
        std::thread::spawn(move || {
            while wanted.upgrade().is_some() {
                read(&mut log, &shared);
                std::thread::sleep(INTERVAL);
            }
        });
        Self {
            complaints,
            _reads: reads,
        }
    }

    /// Panics if the kernel has reported a bug since the log was opened.
    pub(super) fn check(&self) {
        let complaints = self.complaints.lock().unwrap();
        assert!(
            complaints.is_empty(),
            "the kernel complains: {complaints:#?}"
        );
    }
}

/// Reads all pending records.
fn read(log: &mut File, complaints: &Mutex<Vec<String>>) {
    let mut record = [0; 16 << 10];
    loop {
        let found = match log.read(&mut record) {
            Ok(length) => complaint(&String::from_utf8_lossy(&record[..length])).map(str::to_owned),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // The kernel dropped unread records: the next read returns the oldest remaining one.
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::BrokenPipe) =>
            {
                None
            }
            Err(error) => Some(format!("the log cannot be read: {PATH}: {error}")),
        };
        let is_broken = found.as_deref().is_some_and(|text| text.contains(PATH));
        complaints.lock().unwrap().extend(found);
        if is_broken {
            return;
        }
    }
}

/// Returns the text of a record that reports a kernel bug.
fn complaint(record: &str) -> Option<&str> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    // Facility 0 is the kernel's; processes log with other facilities.
    let is_kernels = priority >> 3 == 0;
    let text = text.lines().next()?;
    let alarms = ALARMS.iter().any(|alarm| text.contains(alarm));
    let waits = text.strip_prefix("INFO: task ");
    let is_others = waits.is_some_and(|task| !task.starts_with(OURS));
    (is_kernels && alarms && !is_others).then_some(text)
}

#[test]
fn kernel_warnings_are_distinguished_from_process_crashes() {
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
        // Facility 1: a process wrote the record.
        assert_eq!(complaint(&format!("12,1,2,-;{text}\n")), None, "{text}");
    }
    for text in [
        "probe[4711]: segfault at 0 ip 0000000000401000 sp 00007ffc0 error 4 in probe[401000+1000]",
        "traps: probe[4711] general protection fault ip:401000 sp:7ffc0 error:0 in probe[401000+1000]",
        "probe invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "Call Trace:",
        "INFO: task jbd2/loop7-8:4711 blocked for more than 120 seconds.",
        "Memory cgroup out of memory: Killed process 4711 (probe) total-vm:1kB",
    ] {
        assert_eq!(complaint(&format!("6,1,2,-;{text}\n")), None, "{text}");
    }
}
