//! What a test run can leave on a machine: mounts, cgroups, links, nft tables, processes, files. Take it before and after;
//! the difference must be empty. It looks, and changes nothing.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cage, mounts};

/// A snapshot of what could be left behind, as readable lines with how often each occurs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Residue {
    found: BTreeMap<String, usize>,
}

impl Residue {
    /// What is there now.
    pub fn take() -> Self {
        let mut residue = Self::default();
        residue.mounts();
        residue.links();
        residue.tables();
        residue.processes();
        residue.files(Path::new("/run/atoll"));
        residue
    }

    /// What changed from this snapshot to a later one: `+ …` is left behind, `- …` is gone.
    pub fn diff(&self, later: &Self) -> Vec<String> {
        let gone = later.added_since_with(self, "- ");
        let mut lines = self.added_since_with(later, "+ ");
        lines.extend(gone);
        lines
    }

    /// Panics with a list if anything is there that was not before.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = self.added_since_with(&Self::take(), "");
        assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
    }

    /// What is in `later` and not in `self`.
    fn added_since_with(&self, later: &Self, mark: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for (line, count) in &later.found {
            let before = self.found.get(line).copied().unwrap_or(0);
            for _ in before..*count {
                lines.push(format!("{mark}{line}"));
            }
        }
        lines
    }

    fn add(&mut self, line: String) {
        *self.found.entry(line).or_default() += 1;
    }

    fn mounts(&mut self) {
        for mount in mounts() {
            self.add(format!(
                "mount {} ({} {})",
                mount.point.display(),
                mount.kind,
                mount.source
            ));
            if mount.kind.starts_with("cgroup") {
                self.cgroups(&mount.point, 0);
            }
        }
    }

    /// Ours are near the top; what is below one of ours goes with it.
    fn cgroups(&mut self, directory: &Path, depth: u32) {
        for path in entries(directory) {
            let name = name_of(&path);
            if name.starts_with("atoll-") || name.starts_with(cage::PREFIX) {
                self.add(format!("cgroup {}", path.display()));
            } else if depth < 4 && fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir()) {
                self.cgroups(&path, depth + 1);
            }
        }
    }

    fn links(&mut self) {
        for path in entries(Path::new("/sys/class/net")) {
            let name = name_of(&path);
            if name.starts_with("atl-") {
                self.add(format!("link {name}"));
            }
        }
    }

    /// Without `nft` on the machine nothing of ours can have made a table.
    fn tables(&mut self) {
        let Ok(output) = Command::new("nft").args(["list", "tables"]).output() else {
            return;
        };
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if line
                .split_whitespace()
                .last()
                .is_some_and(|name| name.starts_with("atoll_"))
            {
                self.add(format!("nft {line}"));
            }
        }
    }

    /// Named by us, by what they show as their name or by what was executed. Not test programs (cargo puts them in `deps`)
    /// and not those that this process descends from.
    fn processes(&mut self) {
        let ours = ancestry();
        for path in entries(Path::new("/proc")) {
            let Ok(pid) = name_of(&path).parse::<u32>() else {
                continue;
            };
            let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
            let argv = fs::read(path.join("cmdline")).unwrap_or_default();
            let argv = String::from_utf8_lossy(&argv).replace('\0', " ");
            let first = argv.split(' ').next().unwrap_or_default();
            let program = first.rsplit('/').next().unwrap_or_default();
            let test = first.contains("/deps/")
                || fs::read_link(path.join("exe"))
                    .is_ok_and(|exe| exe.to_string_lossy().contains("/deps/"));
            if (comm.starts_with("atoll") || program.starts_with("atoll"))
                && !test
                && !ours.contains(&pid)
            {
                self.add(format!(
                    "process {pid} {} ({})",
                    comm.trim_end(),
                    argv.trim_end()
                ));
            }
        }
    }

    fn files(&mut self, path: &Path) {
        for path in entries(path) {
            if fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir()) {
                self.files(&path);
            } else {
                self.add(format!("file {}", path.display()));
            }
        }
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// This process and those above it.
fn ancestry() -> Vec<u32> {
    let mut line = Vec::new();
    let mut pid = std::process::id();
    while pid > 0 && !line.contains(&pid) {
        line.push(pid);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        pid = parent.unwrap_or(0);
    }
    line
}
