//! The control group of an instance: parent of its sandboxes and of the keeper.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SandboxCgroup;
use super::directory::{create_directory, remove_tree, wait_empty, write};
use crate::Error;
use crate::facts::{CONTROLLERS, Facts};
use crate::plan::{IdRange, Limits};

/// The parent of an instance's sandboxes.
#[derive(Debug, Clone)]
pub struct InstanceCgroup {
    pub(super) v1: Vec<(String, PathBuf)>,
    v2: PathBuf,
    memory: PathBuf,
}

fn name(tag: &str) -> String {
    format!("atoll-{tag}")
}

impl InstanceCgroup {
    /// Creates the parent of an instance's sandboxes. `memory` is their common limit in bytes.
    pub fn create(facts: &Facts, tag: &str, memory: u64) -> Result<Self, Error> {
        let tree = Self::of(facts, tag)?;
        for (_, path) in &tree.v1 {
            create_directory(path)?;
        }
        if let (Some(root), false) = (&facts.cgroups.v2, facts.cgroups.v2_controllers.is_empty()) {
            delegate(facts, root)?;
            create_directory(&tree.v2)?;
            delegate(facts, &tree.v2)?;
        } else {
            create_directory(&tree.v2)?;
        }
        let file = if tree.memory == tree.v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        write(&tree.memory.join(file), &memory.to_string())?;
        Ok(tree)
    }

    /// The parent of an instance's sandboxes; does not create it.
    pub fn of(facts: &Facts, tag: &str) -> Result<Self, Error> {
        let v2 = facts
            .cgroups
            .v2
            .as_ref()
            .ok_or_else(|| Error::Unsupported {
                feature: "control groups",
                why: "no cgroup2 hierarchy is mounted".into(),
                remedy: "mount one: mount -t cgroup2 none /sys/fs/cgroup/unified",
            })?;
        let v2 = v2.join(name(tag));
        let v1: Vec<_> = facts
            .cgroups
            .v1
            .iter()
            .map(|(controller, mount)| (controller.clone(), mount.join(name(tag))))
            .collect();
        let memory = v1
            .iter()
            .find(|(c, _)| c == "memory")
            .map_or_else(|| v2.clone(), |(_, p)| p.clone());
        Ok(Self { v1, v2, memory })
    }

    /// Moves the keeper into the group, so that it is not killed with the group of the process that
    /// started it. The first move after a while waits for an RCU grace period; the caller does it
    /// concurrently with other work, so that the first sandbox does not wait.
    pub fn adopt(&self, keeper: u32) -> Result<(), Error> {
        let own = self.v2.join("keeper");
        create_directory(&own)?;
        let keeper = keeper.to_string();
        let mut groups: Vec<&PathBuf> = self.v1.iter().map(|(_, path)| path).collect();
        groups.push(&own);
        groups
            .iter()
            .try_for_each(|path| write(&path.join("cgroup.procs"), &keeper))
    }

    /// Creates the groups of one sandbox with its limits. On failure nothing remains.
    pub fn add(&self, id: &str, limits: &Limits, ids: IdRange) -> Result<SandboxCgroup, Error> {
        let group = self.group(id, ids);
        let created = group.create(limits, self);
        if created.is_err() {
            let _ = group.remove();
        }
        created.map(|()| group)
    }

    /// The groups of a sandbox; does not create them.
    pub fn group(&self, id: &str, ids: IdRange) -> SandboxCgroup {
        let at = |controller: &str| {
            let v1 = self.v1.iter().find(|(known, _)| known == controller);
            v1.map_or(&self.v2, |(_, path)| path).join(id)
        };
        let mut v1: Vec<PathBuf> = self.v1.iter().map(|(_, path)| path.join(id)).collect();
        v1.sort();
        v1.dedup();
        SandboxCgroup {
            v1,
            v2: self.v2.join(id),
            memory: at("memory"),
            pids: at("pids"),
            owner: ids.base,
            oom_counter: Arc::default(),
        }
    }

    /// Names of all sandboxes that have groups in this instance.
    pub fn names(&self) -> Vec<String> {
        let paths = self.v1.iter().map(|(_, path)| path).chain([&self.v2]);
        let mut names: Vec<String> = paths
            .filter_map(|path| fs::read_dir(path).ok())
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Kills all processes of all sandboxes of the instance and removes the groups.
    pub fn destroy(&self) -> Result<(), Error> {
        if self.v2.exists() {
            let _ = write(&self.v2.join("cgroup.kill"), "1");
            wait_empty(&self.v2)?;
        }
        for path in self.v1.iter().map(|(_, path)| path).chain([&self.v2]) {
            remove_tree(path)?;
        }
        Ok(())
    }

    /// The tags of all instances that have groups on this host.
    pub fn tags(facts: &Facts) -> Vec<String> {
        let roots = facts.cgroups.v1.values().chain(&facts.cgroups.v2);
        let mut tags: Vec<String> = roots
            .filter_map(|root| fs::read_dir(root).ok())
            .flatten()
            .filter_map(|entry| {
                Some(
                    entry
                        .ok()?
                        .file_name()
                        .to_str()?
                        .strip_prefix("atoll-")?
                        .to_owned(),
                )
            })
            .collect();
        tags.sort();
        tags.dedup();
        tags
    }
}

/// Enables the controllers that v1 does not have for the children of a cgroup2 directory. Enabled ones are not written
/// again: the root directory belongs to the host.
fn delegate(facts: &Facts, directory: &Path) -> Result<(), Error> {
    let control = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    let missing: Vec<String> = CONTROLLERS
        .iter()
        .filter(|c| !facts.cgroups.v1.contains_key(**c))
        .filter(|c| facts.cgroups.v2_controllers.iter().any(|known| known == *c))
        .filter(|c| !enabled.split_whitespace().any(|known| known == **c))
        .map(|c| format!("+{c}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    write(&control, &missing.join(" "))
}
