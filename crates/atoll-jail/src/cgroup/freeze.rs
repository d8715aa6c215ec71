//! Freezing and thawing the processes of a sandbox.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::SandboxCgroup;
use super::directory::{poll_until, wait_until, write};
use super::usage::number_after;
use crate::Error;

/// Time within which most sandboxes freeze, even if other processes use all processors.
const FREEZE_GRACE: Duration = Duration::from_millis(20);

impl SandboxCgroup {
    /// Freezes all processes of the sandbox and waits for it. Thaws them if one does not freeze in time.
    pub fn freeze(&self) -> Result<(), Error> {
        if self.request_freeze()? {
            return Ok(());
        }
        self.wait_frozen()
    }

    /// Starts to freeze all processes; true if they are frozen within `FREEZE_GRACE`.
    pub fn request_freeze(&self) -> Result<bool, Error> {
        write(&self.v2.join("cgroup.freeze"), "1")?;
        Ok(poll_until(FREEZE_GRACE, || self.is_fully_frozen()))
    }

    /// Waits until all are frozen. Thaws them if one does not freeze in time.
    pub fn wait_frozen(&self) -> Result<(), Error> {
        let step = || format!("wait until {} stands still", self.v2.display());
        wait_until(step, || self.is_fully_frozen()).inspect_err(|_| {
            let _ = self.thaw();
        })
    }

    /// Whether all processes are frozen. The kernel reports a group that has both processes and child groups as
    /// frozen as soon as either are, so both are checked.
    fn is_fully_frozen(&self) -> bool {
        let frozen = |path: &Path| match fs::read_to_string(path.join("cgroup.events")) {
            Ok(events) => number_after(&events, "frozen") == 1,
            // The exec has ended meanwhile.
            Err(_) => true,
        };
        let below = fs::read_dir(&self.v2).into_iter().flatten().flatten();
        frozen(&self.v2)
            && below
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .all(|entry| frozen(&entry.path()))
            && !self.has_unfrozen()
    }

    /// Whether a process of the group itself, PID 1 or a helper, is not frozen yet. The freezer wakes each process, which is
    /// runnable until it has frozen. PID 1 in state D counts as frozen: it waits for the `execve` of a child that
    /// shares its memory, and does nothing else.
    fn has_unfrozen(&self) -> bool {
        let own = fs::read_to_string(self.v2.join("cgroup.procs")).unwrap_or_default();
        own.lines().any(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The command name before the last `)` may contain any character.
            let mut rest = stat
                .rsplit_once(") ")
                .map_or("", |(_, rest)| rest)
                .split(' ');
            let (state, parent) = (rest.next(), rest.next().unwrap_or_default());
            match state {
                Some("R") => true,
                Some("D") => own.lines().any(|pid| pid == parent),
                _ => false,
            }
        })
    }

    /// Thaws all processes. Does not wait until one runs, which may take long while all processors are busy.
    pub fn thaw(&self) -> Result<(), Error> {
        write(&self.v2.join("cgroup.freeze"), "0")
    }

    /// Whether the sandbox is frozen or is being frozen.
    pub fn is_frozen(&self) -> bool {
        let set = fs::read_to_string(self.v2.join("cgroup.freeze"));
        set.is_ok_and(|set| set.trim() == "1")
    }
}
