//! Adoption of the sandboxes of an earlier server process.
//!
//! A record says what should exist, the keeper's inventory what does:
//!
//! - record, and alive in a keeper: adopted;
//! - record, unknown to all keepers: stopped, its files remain;
//! - no record, alive in a keeper: never acknowledged to a caller, killed when the server is idle
//!   (an earlier server leaves about a hundred embryos);
//! - a record that cannot be parsed: moved to `orphaned/` with its files;
//! - a record that cannot be read: the start fails before anything is changed.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_jail::plan::IdRange;
use atoll_model::{Error, SandboxId, SandboxInfo, SandboxSpec, SandboxState, StopReason, Timings};

use super::unadoptable::Apart;
use super::{Entry, LocalRuntime, Place};
use crate::error::host_file;
use crate::exec::stdin::StdinQueue;
use crate::keeper::Found;
use crate::keeper::previous::Inventory;
use crate::sandbox::{Record, Sandbox, Unread, blocking, boot, lock};
use crate::trash::{Item, Living};

impl LocalRuntime {
    /// Adopts the sandboxes of the last server.
    pub(super) async fn take_over(&self, mut inventory: Inventory) -> Result<(), Error> {
        let keepers = std::mem::take(&mut inventory.keepers);
        lock(&self.shared.foreign).clone_from(&inventory.foreign);
        let runtime = self.clone();
        let handle = tokio::runtime::Handle::current();
        let unknown = blocking(move || {
            let _entered = handle.enter();
            runtime.take_all_over(inventory)
        })
        .await?;
        for keeper in keepers {
            // The keeper's exit is noticed by its channel.
            let _ = keeper.accept().await;
        }
        self.dismiss_keepers(None).await;
        for item in unknown {
            self.shared.trash.throw(item);
        }
        Ok(())
    }

    /// Returns the sandboxes that were never acknowledged; their processes still run.
    fn take_all_over(&self, inventory: Inventory) -> Result<Vec<Item>, Error> {
        let instance = &self.shared.instance;
        let sandboxes = instance.sandboxes();
        // Before anything is changed: an I/O error does not mean that there is no record.
        let records = read_all(&sandboxes)?;
        empty(&instance.trash());
        let mut unknown = Vec::new();
        let foreign = inventory.foreign.iter().map(|keeper| keeper.version).max();
        let stayed = !inventory.sandboxes.is_empty();
        let mut found: HashMap<String, Found> = inventory
            .sandboxes
            .into_iter()
            .map(|found| (found.name.clone(), found))
            .collect();
        for (id, path, record) in records {
            let found = found.remove(id.as_str());
            match record {
                Some(Ok(record)) => {
                    unknown.extend(self.take_one_over(path, record, found, (stayed, foreign)));
                }
                // Its create never finished.
                None => unknown.push(self.unknown(id, &path, found)),
                Some(Err(Senseless)) => self.orphan(&id, &path),
            }
        }
        // Processes without a directory were never acknowledged.
        for found in found.into_values() {
            if let Ok(id) = found.name.parse() {
                let path = instance.sandbox(&id);
                unknown.push(self.unknown(id, &path, Some(found)));
            }
        }
        let ending = |id: &SandboxId| {
            let mut living = unknown.iter().filter(|item| item.living.is_some());
            living.any(|item| item.id == *id)
        };
        for name in instance.cgroups.names() {
            let Ok(id) = name.parse::<SandboxId>() else {
                continue;
            };
            let live = self.entry(&id).map(|entry| entry.place());
            let lives = matches!(live, Ok(Place::Live(_) | Place::Apart(_)));
            if !lives && !self.shared.pool.has(&id) && !ending(&id) {
                self.kill(&name);
            }
        }
        instance.ranges.release_others();
        self.sweep_authorities();
        self.reconnect()?;
        let aside = crate::orphans::directory(&instance.directory);
        let known = |id: &SandboxId| {
            let mut places = [&sandboxes, &aside].into_iter();
            places.any(|at| at.join(id.as_str()).exists()) || ending(id)
        };
        instance.disk.sweep(&known)?;
        Ok(unknown)
    }

    /// Adopts one sandbox. If that fails, an acknowledged one keeps running as unadoptable, and a
    /// warm one is returned to be discarded.
    fn take_one_over(
        &self,
        path: PathBuf,
        mut record: Record,
        found: Option<Found>,
        (keeper_stayed, foreign): (bool, Option<u32>),
    ) -> Option<Item> {
        let (id, pooled) = (record.info.id.clone(), record.pooled);
        // A warm sandbox is mounted from the certificate authorities of the server that created it.
        if pooled && !self.shared.authorities.agree(record.authorities.as_ref()) {
            return Some(self.unknown(id, &path, found));
        }
        let ran = record.info.state != SandboxState::Stopped;
        let alive = found.as_ref().is_some_and(|found| found.parent.pid != 0);
        if ran
            && alive
            && let Some(found) = found
        {
            let as_it_was = record.clone();
            match Sandbox::adopt(&self.shared, path.clone(), record, found) {
                Ok(sandbox) if pooled => {
                    self.shared.pool.asked(&sandbox.info().template);
                    let _ = self.shared.pool.add(sandbox);
                }
                Ok(sandbox) => drop(self.add(&sandbox)),
                // It was never acknowledged to a caller.
                Err(_) if pooled => return Some(self.unknown(id, &path, None)),
                Err(error) => self.add_apart(Apart::new(&self.shared, path, as_it_was, error)),
            }
            return None;
        }
        if pooled {
            return Some(self.unknown(id, &path, None));
        }
        let mut reason = if record.boot != boot() {
            StopReason::HostRestart
        } else if keeper_stayed {
            StopReason::Exited
        } else {
            StopReason::KeeperLost
        };
        let group = self
            .shared
            .instance
            .cgroups
            .group(id.as_str(), record.ids());
        if ran && let Some(version) = foreign {
            if group.is_inhabited() {
                let apart = Apart::foreign(&self.shared, path, record, version);
                self.add_apart(apart);
                return None;
            }
            reason = StopReason::Exited;
        }
        if ran {
            record.info.state = SandboxState::Stopped;
            record.info.reason = Some(reason);
            // If the write fails, the next server computes the same.
            let _ = record.write(&path);
            self.shared.note_record(&id);
            let _ = group.remove();
        }
        // Stdin of its execs has no reader any more.
        StdinQueue::remove_stale(&path.join("execs"), &HashSet::new());
        let execs = Arc::new(self.shared.table(&id, &path, false));
        let entry = Entry::new(Place::Stopped(Box::new(record), execs));
        lock(&self.shared.sandboxes).insert(id, entry);
        None
    }

    /// Removes layers of certificate authorities that no running sandbox is mounted from.
    fn sweep_authorities(&self) {
        let mut used = HashSet::new();
        for (_, entry) in self.shared.entries() {
            let mounted = match entry.place() {
                Place::Live(sandbox) => lock(&sandbox.record).authorities.clone(),
                Place::Apart(apart) => apart.record.authorities.clone(),
                Place::Stopped(..) | Place::Gone => None,
            };
            used.extend(mounted.map(|mounted| mounted.server));
        }
        self.shared.authorities.sweep(&used);
    }

    /// Moves a sandbox with a corrupt record to `orphaned/`. If that fails, it stays as it is.
    fn orphan(&self, id: &SandboxId, path: &Path) {
        crate::orphans::write_marker(path);
        let aside = crate::orphans::directory(&self.shared.instance.directory);
        if fs::rename(path, aside.join(id.as_str())).is_ok() {
            self.kill(id.as_str());
        }
    }

    /// Restores a sandbox whose record was lost in a power failure as a stopped one, from its row.
    /// False if it has no files. Its variables are lost, and its layer is the template's current
    /// one.
    pub async fn recover(
        &self,
        id: &SandboxId,
        spec: SandboxSpec,
        created_at: i64,
    ) -> Result<bool, Error> {
        let (runtime, id) = (self.clone(), id.clone());
        blocking(move || runtime.recover_files(id, spec, created_at)).await
    }

    fn recover_files(
        &self,
        id: SandboxId,
        spec: SandboxSpec,
        created_at: i64,
    ) -> Result<bool, Error> {
        let instance = &self.shared.instance;
        let aside = crate::orphans::directory(&instance.directory).join(id.as_str());
        let path = instance.sandbox(&id);
        match fs::rename(&aside, &path) {
            Ok(()) => crate::orphans::remove_marker(&path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(host_file("move to", &path, &error)),
        }
        let info = SandboxInfo {
            id: id.clone(),
            template: spec.template.clone(),
            state: SandboxState::Stopped,
            reason: Some(StopReason::HostRestart),
            limits: spec.limits,
            network: spec.network,
            created_at,
            timings: Timings::default(),
        };
        let record = Record::new(info, spec, IdRange { base: 0, count: 0 });
        record.write(&path)?;
        self.shared.note_record(&id);
        let execs = Arc::new(self.shared.table(&id, &path, false));
        let entry = Entry::new(Place::Stopped(Box::new(record), execs));
        lock(&self.shared.sandboxes).insert(id, entry);
        Ok(true)
    }

    /// Adopts the network links of running sandboxes. A link that no longer exists is created
    /// again.
    fn reconnect(&self) -> Result<(), Error> {
        let entries: Vec<_> = self.sandboxes().values().cloned().collect();
        let live = entries.into_iter().filter_map(|entry| match entry.place() {
            Place::Live(sandbox) => sandbox.linked().map(|linked| (Ok(sandbox), linked)),
            Place::Apart(apart) => {
                let linked = (apart.linked()?, apart.record.spec.policy.clone());
                Some((Err(apart), linked))
            }
            _ => None,
        });
        let mut live: Vec<_> = live.collect();
        let Some(gateway) = live.first().map(|(_, (linked, _))| linked.gateway) else {
            return self.shared.network.discard_previous();
        };
        live.retain(|(_, (linked, _))| linked.gateway == gateway);
        let known: Vec<_> = live
            .iter()
            .map(|(_, (linked, policy))| (linked.address, policy.clone()))
            .collect();
        let links = self.shared.network.resume(gateway, &known)?;
        for ((sandbox, (_, policy)), link) in live.into_iter().zip(links) {
            let sandbox = match sandbox {
                Ok(sandbox) => sandbox,
                Err(apart) => {
                    apart.relink(link);
                    continue;
                }
            };
            if let Some(link) = link {
                sandbox.relink(link)?;
                continue;
            }
            let another = async {
                let namespace = sandbox.namespace()?;
                let link = self.shared.network.attach(namespace, policy).await?;
                sandbox.relink(link)
            };
            // A sandbox that cannot be linked is exiting, and its link with it.
            let _ = tokio::runtime::Handle::current().block_on(another);
        }
        Ok(())
    }

    /// Moves the files of a sandbox that was never acknowledged to the trash.
    fn unknown(&self, id: SandboxId, path: &Path, found: Option<Found>) -> Item {
        let directory = self.shared.instance.trash().join(id.as_str());
        let _ = fs::rename(path, &directory);
        Item {
            living: found.and_then(|found| self.living(&found)),
            id,
            directory,
            _work: self.shared.aftermath.begin(),
        }
    }

    /// The processes of such a sandbox, to be killed later; their ids stay claimed until then.
    /// Processes of another keeper are killed at once: that keeper exits with its last sandbox.
    fn living(&self, found: &Found) -> Option<Living> {
        let instance = &self.shared.instance;
        let ours = Arc::ptr_eq(&found.keeper, &self.shared.keeper);
        let Some(ids) = ours.then(|| found.ids()).flatten() else {
            self.kill(&found.name);
            return None;
        };
        instance.ranges.inherit(ids);
        let group = instance.cgroups.group(&found.name, ids);
        Some(Living { group, ids })
    }

    fn kill(&self, name: &str) {
        let ids = IdRange { base: 0, count: 0 };
        let group = self.shared.instance.cgroups.group(name, ids);
        let _ = group.kill();
        let _ = group.remove();
    }
}

/// A record that cannot be parsed.
struct Senseless;

/// A sandbox's id and directory, and its record; `None` if it has none.
type Written = (SandboxId, PathBuf, Option<Result<Record, Senseless>>);

/// Reads all records.
fn read_all(sandboxes: &Path) -> Result<Vec<Written>, Error> {
    let failed = |error: std::io::Error| host_file("read", sandboxes, &error);
    let mut all = Vec::new();
    for entry in fs::read_dir(sandboxes).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(id) = name_of(&path) else { continue };
        let record = match Record::read(&path) {
            Ok(record) => record.map(Ok),
            Err(Unread::Senseless) => Some(Err(Senseless)),
            Err(Unread::Unknown(error)) => {
                return Err(
                    error.remedy("nothing was changed: see to the disk, and start atoll again")
                );
            }
        };
        all.push((id, path, record));
    }
    Ok(all)
}

fn name_of(path: &Path) -> Option<SandboxId> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Removes the contents of a directory in the background.
fn empty(directory: &Path) {
    let paths: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    std::thread::spawn(move || {
        for path in paths {
            let _ = crate::instance::remove_directory(&path);
        }
    });
}
