//! Required features of a host.

use crate::Error;
use crate::facts::Facts;

/// The oldest kernel that can mount overlay layers with mapped ids.
pub const OLDEST_KERNEL: (u32, u32) = (5, 19);
/// Capabilities that this process needs to create a sandbox.
const NEEDED: [(&str, u8); 7] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_SETPCAP", 8),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_MKNOD", 27),
];

/// Fails with a remedy if the host lacks a required feature.
pub fn require(facts: &Facts) -> Result<(), Error> {
    let unsupported = |feature, why: String, remedy| {
        Err(Error::Unsupported {
            feature,
            why,
            remedy,
        })
    };
    if !facts.root {
        return unsupported(
            "sandboxes without root",
            "this process is not root of the initial user namespace".into(),
            "run atoll as root (rootless mode is not there yet)",
        );
    }
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(_, bit)| facts.capabilities & (1 << bit) == 0)
        .map(|(name, _)| *name)
        .collect();
    if !missing.is_empty() {
        return unsupported(
            "privileged set-up",
            format!("this process lacks {}", missing.join(", ")),
            "run atoll as root outside of other containers, or give it these capabilities",
        );
    }
    if facts.kernel < OLDEST_KERNEL {
        return unsupported(
            "id-mapped overlay layers",
            format!("Linux {} is older than 5.19", facts.release),
            "boot a newer kernel",
        );
    }
    if !facts.user_namespaces {
        return unsupported(
            "user namespaces",
            "user.max_user_namespaces is 0".into(),
            "set it with: sysctl user.max_user_namespaces=65536",
        );
    }
    if !facts.seccomp {
        return unsupported(
            "system call filters",
            "the kernel has no seccomp".into(),
            "boot a kernel with CONFIG_SECCOMP_FILTER",
        );
    }
    for kind in ["overlay", "tmpfs", "devpts", "proc"] {
        if !facts.filesystems.iter().any(|known| known == kind) {
            return unsupported(
                "overlay root file systems",
                format!("the kernel does not know the file system {kind}"),
                "load its module, for example: modprobe overlay",
            );
        }
    }
    Ok(())
}
