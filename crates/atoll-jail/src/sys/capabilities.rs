//! Capabilities of this thread and its children.

use std::io;

use super::{check, prctl};

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// One half of the three sets: effective, permitted, inheritable.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

impl CapabilityHeader {
    /// Of this thread, 64 bits in two halves.
    const OWN: Self = Self {
        version: 0x2008_0522,
        pid: 0,
    };
}

/// Makes the permitted and effective sets of this process these, and the inheritable one empty.
pub(crate) fn set_capabilities(permitted: u64, effective: u64) -> io::Result<()> {
    let half = |shift: u32| Capabilities {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: 0,
    };
    capset([half(0), half(32)])
}

fn capset(data: [Capabilities; 2]) -> io::Result<()> {
    let header = CapabilityHeader::OWN;
    // SAFETY: both structures have the layout of version 3 and live across the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) })?;
    Ok(())
}

/// Lets root exceed quotas and resource limits.
const SYS_RESOURCE: u32 = 24;

/// Drops `CAP_SYS_RESOURCE`, which lets root exceed quotas, for this thread and its children. Call it before
/// other threads start.
pub fn drop_cap_sys_resource() -> io::Result<()> {
    give_up(SYS_RESOURCE)
}

/// Drops one capability for good, for this thread and its children.
fn give_up(capability: u32) -> io::Result<()> {
    // Limits children. It fails without `CAP_SETPCAP`; then neither this process nor its children are root.
    let bounded = prctl(libc::PR_CAPBSET_DROP, u64::from(capability));
    let mut header = CapabilityHeader::OWN;
    let mut data = [Capabilities::default(); 2];
    // SAFETY: both structures have the layout of version 3 and live across the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    let half = &mut data[(capability / 32) as usize];
    let others = !(1 << (capability % 32));
    half.effective &= others;
    half.permitted &= others;
    half.inheritable &= others;
    capset(data)?;
    bounded.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sets of capabilities that a status of a process tells, by name.
    fn sets(status: &str) -> Vec<(String, u64)> {
        let set = |line: &str| {
            let (name, value) = line.split_once(':')?;
            let value = u64::from_str_radix(value.trim(), 16).ok()?;
            name.starts_with("Cap").then(|| (name.to_owned(), value))
        };
        status.lines().filter_map(set).collect()
    }

    #[test]
    fn dropped_capabilities_are_gone_from_thread_and_children() {
        // One that tests have and nothing here needs.
        const SYS_TIME: u32 = 25;
        let work = || {
            let own = || std::fs::read_to_string("/proc/thread-self/status").expect("a status");
            let before = sets(&own());
            let has = |all: &[(String, u64)], name: &str| {
                all.iter()
                    .any(|(known, set)| known == name && set & (1 << SYS_TIME) != 0)
            };
            for name in ["CapPrm", "CapEff", "CapBnd"] {
                assert!(has(&before, name), "{name}: {before:x?}");
            }
            give_up(SYS_TIME).expect("it is given up");
            let after = sets(&own());
            let expected: Vec<_> = before
                .iter()
                .map(|(name, set)| (name.clone(), set & !(1 << SYS_TIME)))
                .collect();
            assert_eq!(after, expected);
            let started = std::process::Command::new("cat")
                .arg("/proc/self/status")
                .output()
                .expect("a program");
            let started = sets(&String::from_utf8_lossy(&started.stdout));
            assert!(started.iter().all(|(name, _)| !has(&started, name)));
            assert!(!started.is_empty());
            give_up(SYS_TIME).expect("again is nothing");
        };
        // Of a thread, so that other tests keep theirs.
        std::thread::spawn(work).join().expect("no panic");
    }
}
