//! Limits of a sandbox: the files that hold them, and their change while processes run.

use std::io;
use std::path::{Path, PathBuf};

use super::directory::write;
use super::{InstanceCgroup, SandboxCgroup};
use crate::Error;
use crate::plan::Limits;

impl SandboxCgroup {
    /// Files of the limits and their values.
    pub(super) fn files<'a>(
        &self,
        limits: &'a Limits,
        tree: &InstanceCgroup,
    ) -> Vec<(PathBuf, &'a str)> {
        let id = self.v2.file_name().unwrap_or_default();
        let mut files = Vec::new();
        for (controller, of_v1) in &limits.v1 {
            if let Some((_, parent)) = tree.v1.iter().find(|(known, _)| known == controller) {
                let at = |file: &String| parent.join(id).join(file);
                files.extend(of_v1.iter().map(|(file, value)| (at(file), value.as_str())));
            }
        }
        let of_v2 = limits.v2.iter();
        files.extend(of_v2.map(|(file, value)| (self.v2.join(file), value.as_str())));
        files
    }

    /// Changes limits; on failure the old limits stay. Fails with `EBUSY` if more memory is in use than can be
    /// reclaimed.
    pub fn change(&self, from: &Limits, to: &Limits, tree: &InstanceCgroup) -> Result<(), Error> {
        let (from, to) = (self.files(from, tree), self.files(to, tree));
        let changed = self.step(&from, &to);
        if changed.is_err() {
            let _ = self.step(&to, &from);
        }
        changed
    }

    fn step(&self, from: &[(PathBuf, &str)], to: &[(PathBuf, &str)]) -> Result<(), Error> {
        let gone = from
            .iter()
            .filter(|(path, _)| to.iter().all(|(other, _)| other != path))
            .filter_map(|(path, _)| Some((path, unlimited(path)?)));
        let new = to
            .iter()
            .filter(|file| !from.contains(file))
            .map(|(path, value)| (path, *value));
        let mut late = Vec::new();
        for (path, value) in new.chain(gone) {
            if path.ends_with("memory.max") {
                self.make_room(value)?;
            }
            match write(path, value) {
                // In v1 the memory limit may never exceed that of memory and swap: the order of the two writes matters.
                Err(Error::Step { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
                    late.push((path, value));
                }
                written => written?,
            }
        }
        late.iter().try_for_each(|(path, value)| write(path, value))
    }

    /// Reclaims memory above a new limit first: cgroup2 would OOM-kill for it. What cannot be reclaimed is an
    /// error, as in v1.
    fn make_room(&self, limit: &str) -> Result<(), Error> {
        let used = || self.usage().memory;
        let Ok(limit) = limit.parse::<u64>() else {
            return Ok(());
        };
        let above = used().saturating_sub(limit);
        if above > 0 {
            // The write fails if not all was reclaimed; the usage is checked below.
            let _ = write(&self.v2.join("memory.reclaim"), &above.to_string());
            if used() > limit {
                let busy = io::Error::from_raw_os_error(libc::EBUSY);
                let step = format!("limit the memory of {}", self.v2.display());
                return Err(Error::step(step, busy));
            }
        }
        Ok(())
    }
}

/// Value without a limit, for files that a plan omits if there is no limit.
fn unlimited(path: &Path) -> Option<&'static str> {
    match path.file_name()?.to_str()? {
        "cpu.cfs_quota_us" => Some("-1"),
        "cpu.max" => Some("max"),
        _ => None,
    }
}
