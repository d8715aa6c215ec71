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
use atoll_model::runtime::Recovery;
use atoll_model::{Error, SandboxId, SandboxInfo, SandboxSpec, SandboxState, StopReason, Timings};

use super::unadoptable::Unadoptable;
use super::{EntryState, LocalRuntime, SandboxEntry};
use crate::error::host_file_error;
use crate::exec::stdin::StdinQueue;
use crate::keeper::SurvivingSandbox;
use crate::keeper::previous::Inventory;
use crate::sandbox::{Record, RecordError, Sandbox, host_boot_id, run_blocking};
use crate::sync::lock;
use crate::trash::{Item, LeftoverProcesses};

impl LocalRuntime {
    /// Adopts the sandboxes of the last server.
    pub(super) async fn adopt_all(
        &self,
        mut inventory: Inventory,
        acknowledged: HashSet<SandboxId>,
    ) -> Result<(), Error> {
        let keepers = std::mem::take(&mut inventory.keepers);
        lock(&self.shared.incompatible_keepers).clone_from(&inventory.incompatible);
        let runtime = self.clone();
        let handle = tokio::runtime::Handle::current();
        let unacknowledged = run_blocking(move || {
            let _entered = handle.enter();
            runtime.adopt_inventory(inventory, &acknowledged)
        })
        .await?;
        for keeper in keepers {
            // The keeper's exit is noticed by its channel.
            let _ = keeper.acknowledge().await;
        }
        self.dismiss_keepers(None).await;
        for item in unacknowledged {
            self.shared.trash.push(item);
        }
        Ok(())
    }

    /// Returns the sandboxes that were never acknowledged; their processes still run.
    fn adopt_inventory(
        &self,
        inventory: Inventory,
        acknowledged: &HashSet<SandboxId>,
    ) -> Result<Vec<Item>, Error> {
        let instance = &self.shared.instance;
        let sandboxes = instance.sandboxes();
        // Before anything is changed: an I/O error does not mean that there is no record.
        let records = read_all(&sandboxes)?;
        empty_in_background(&instance.trash());
        let mut unacknowledged = Vec::new();
        let incompatible = inventory
            .incompatible
            .iter()
            .map(|keeper| keeper.version)
            .max();
        let has_keeper = !inventory.sandboxes.is_empty();
        let mut found: HashMap<String, SurvivingSandbox> = inventory
            .sandboxes
            .into_iter()
            .map(|found| (found.name.clone(), found))
            .collect();
        for (id, path, record) in records {
            let found = found.remove(id.as_str());
            let is_warm = matches!(&record, Some(Ok(record)) if record.is_pooled);
            match record {
                // A power failure undid its last record. The control plane recovers it.
                _ if acknowledged.contains(&id) && (is_warm || record.is_none()) => {
                    self.orphan_files(&id, &path);
                }
                Some(Ok(record)) => {
                    unacknowledged.extend(self.adopt_one(
                        path,
                        record,
                        found,
                        (has_keeper, incompatible),
                    ));
                }
                // Its create never finished.
                None => unacknowledged.push(self.discard_unacknowledged(id, &path, found)),
                Some(Err(CorruptRecord)) => self.orphan_files(&id, &path),
            }
        }
        // Processes without a directory were never acknowledged.
        for found in found.into_values() {
            if let Ok(id) = found.name.parse() {
                let path = instance.sandbox(&id);
                unacknowledged.push(self.discard_unacknowledged(id, &path, Some(found)));
            }
        }
        let is_ending = |id: &SandboxId| {
            let mut with_processes = unacknowledged
                .iter()
                .filter(|item| item.processes.is_some());
            with_processes.any(|item| item.id == *id)
        };
        for name in instance.cgroups.names() {
            let Ok(id) = name.parse::<SandboxId>() else {
                continue;
            };
            let live = self.entry(&id).map(|entry| entry.state());
            let is_live = matches!(live, Ok(EntryState::Live(_) | EntryState::Unadoptable(_)));
            if !is_live && !self.shared.warm_pool.contains(&id) && !is_ending(&id) {
                self.kill(&name);
            }
        }
        instance.ranges.release_others();
        self.sweep_authorities();
        self.adopt_links()?;
        let orphaned = crate::orphans::directory(&instance.directory);
        let is_known = |id: &SandboxId| {
            let mut directories = [&sandboxes, &orphaned].into_iter();
            directories.any(|at| at.join(id.as_str()).exists()) || is_ending(id)
        };
        instance.storage.sweep(&is_known)?;
        Ok(unacknowledged)
    }

    /// Adopts one sandbox. If that fails, an acknowledged one keeps running as unadoptable, and a
    /// warm one is returned to be discarded.
    fn adopt_one(
        &self,
        path: PathBuf,
        mut record: Record,
        found: Option<SurvivingSandbox>,
        (has_keeper, incompatible): (bool, Option<u32>),
    ) -> Option<Item> {
        let (id, is_pooled) = (record.info.id.clone(), record.is_pooled);
        // A warm sandbox is mounted from the certificate authorities of the server that created it.
        if is_pooled && !self.shared.authorities.matches(record.authorities.as_ref()) {
            return Some(self.discard_unacknowledged(id, &path, found));
        }
        let was_running = record.info.state != SandboxState::Stopped;
        let is_alive = found.as_ref().is_some_and(|found| found.process.pid != 0);
        if was_running
            && is_alive
            && let Some(found) = found
        {
            let original_record = record.clone();
            match Sandbox::adopt(&self.shared, path.clone(), record, found) {
                Ok(sandbox) if is_pooled => {
                    self.shared
                        .warm_pool
                        .record_demand(&sandbox.info().template);
                    let _ = self.shared.warm_pool.add(sandbox);
                }
                Ok(sandbox) => drop(self.add(&sandbox)),
                // It was never acknowledged to a caller.
                Err(_) if is_pooled => return Some(self.discard_unacknowledged(id, &path, None)),
                Err(error) => self.add_unadoptable(Unadoptable::new(
                    &self.shared,
                    path,
                    original_record,
                    error,
                )),
            }
            return None;
        }
        if is_pooled {
            return Some(self.discard_unacknowledged(id, &path, None));
        }
        let mut reason = if record.boot_id != host_boot_id() {
            StopReason::HostRestart
        } else if has_keeper {
            StopReason::Exited
        } else {
            StopReason::KeeperLost
        };
        let group = self
            .shared
            .instance
            .cgroups
            .group(id.as_str(), record.ids());
        if was_running && let Some(version) = incompatible {
            if group.is_populated() {
                let unadoptable = Unadoptable::incompatible(&self.shared, path, record, version);
                self.add_unadoptable(unadoptable);
                return None;
            }
            reason = StopReason::Exited;
        }
        if was_running {
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
        let entry = SandboxEntry::new(EntryState::Stopped(Box::new(record), execs));
        lock(&self.shared.sandboxes).insert(id, entry);
        None
    }

    /// Removes layers of certificate authorities that no running sandbox is mounted from.
    fn sweep_authorities(&self) {
        let mut used = HashSet::new();
        for (_, entry) in self.shared.entries() {
            let mounted = match entry.state() {
                EntryState::Live(sandbox) => lock(&sandbox.record).authorities.clone(),
                EntryState::Unadoptable(sandbox) => sandbox.record.authorities.clone(),
                EntryState::Stopped(..) | EntryState::Gone => None,
            };
            used.extend(mounted.map(|mounted| mounted.server));
        }
        self.shared.authorities.sweep(&used);
    }

    /// Moves the files of a sandbox with a corrupt or lost record to `orphaned/`. If that fails, it stays as it is.
    fn orphan_files(&self, id: &SandboxId, path: &Path) {
        crate::orphans::write_marker(path);
        let orphaned = crate::orphans::directory(&self.shared.instance.directory);
        if fs::rename(path, orphaned.join(id.as_str())).is_ok() {
            self.kill(id.as_str());
        }
    }

    /// Restores a sandbox in `orphaned/` as a stopped one. If its record cannot be
    /// parsed, or is that of a warm sandbox, it gets a new one from `spec`, without variables.
    /// `None` if it has no files.
    pub async fn recover(
        &self,
        id: &SandboxId,
        spec: SandboxSpec,
        created_at: i64,
    ) -> Result<Option<Recovery>, Error> {
        let (runtime, id) = (self.clone(), id.clone());
        run_blocking(move || runtime.recover_files(id, spec, created_at)).await
    }

    fn recover_files(
        &self,
        id: SandboxId,
        spec: SandboxSpec,
        created_at: i64,
    ) -> Result<Option<Recovery>, Error> {
        let instance = &self.shared.instance;
        let orphaned = crate::orphans::directory(&instance.directory).join(id.as_str());
        let path = instance.sandbox(&id);
        let former = match Record::read(&orphaned) {
            Ok(former) => former,
            Err(RecordError::Corrupt) => None,
            Err(RecordError::Io(error)) => return Err(error),
        };
        match fs::rename(&orphaned, &path) {
            Ok(()) => crate::orphans::remove_marker(&path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(host_file_error("move to", &path, &error)),
        }
        let (record, recovered) = match former {
            Some(former) if !former.is_pooled => (former.stopped(), Recovery::Intact),
            former => {
                let mut record = new_record(id.clone(), spec, created_at);
                record.layer = former.and_then(|former| former.layer);
                (record, Recovery::WithoutRecord)
            }
        };
        record.write(&path)?;
        self.shared.note_record(&id);
        let execs = Arc::new(self.shared.table(&id, &path, false));
        let entry = SandboxEntry::new(EntryState::Stopped(Box::new(record), execs));
        lock(&self.shared.sandboxes).insert(id, entry);
        Ok(Some(recovered))
    }

    /// Adopts the network links of running sandboxes. A link that no longer exists is created
    /// again.
    fn adopt_links(&self) -> Result<(), Error> {
        let entries: Vec<_> = self.sandboxes().values().cloned().collect();
        let live = entries.into_iter().filter_map(|entry| match entry.state() {
            EntryState::Live(sandbox) => sandbox.link_record().map(|linked| (Ok(sandbox), linked)),
            EntryState::Unadoptable(sandbox) => {
                let linked = (sandbox.link_record()?, sandbox.record.spec.policy.clone());
                Some((Err(sandbox), linked))
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
                Err(unadoptable) => {
                    unadoptable.relink(link);
                    continue;
                }
            };
            if let Some(link) = link {
                sandbox.relink(link)?;
                continue;
            }
            let attach = async {
                let namespace = sandbox.namespace()?;
                let link = self.shared.network.attach(namespace, policy).await?;
                sandbox.relink(link)
            };
            // A sandbox that cannot be linked is exiting, and its link with it.
            let _ = tokio::runtime::Handle::current().block_on(attach);
        }
        Ok(())
    }

    /// Moves the files of a sandbox that was never acknowledged to the trash.
    fn discard_unacknowledged(
        &self,
        id: SandboxId,
        path: &Path,
        found: Option<SurvivingSandbox>,
    ) -> Item {
        let directory = self.shared.instance.trash().join(id.as_str());
        let _ = fs::rename(path, &directory);
        Item {
            processes: found.and_then(|found| self.leftover_processes(&found)),
            id,
            directory,
            _guard: self.shared.cleanup.begin(),
        }
    }

    /// The processes of such a sandbox, to be killed later; their ids stay claimed until then.
    /// Processes of another keeper are killed at once: that keeper exits with its last sandbox.
    fn leftover_processes(&self, found: &SurvivingSandbox) -> Option<LeftoverProcesses> {
        let instance = &self.shared.instance;
        let ours = Arc::ptr_eq(&found.keeper, &self.shared.keeper);
        let Some(ids) = ours.then(|| found.ids()).flatten() else {
            self.kill(&found.name);
            return None;
        };
        instance.ranges.inherit(ids);
        let group = instance.cgroups.group(&found.name, ids);
        Some(LeftoverProcesses { group, ids })
    }

    fn kill(&self, name: &str) {
        let ids = IdRange { base: 0, count: 0 };
        let group = self.shared.instance.cgroups.group(name, ids);
        let _ = group.kill();
        let _ = group.remove();
    }
}

fn new_record(id: SandboxId, spec: SandboxSpec, created_at: i64) -> Record {
    let info = SandboxInfo {
        id,
        template: spec.template.clone(),
        state: SandboxState::Stopped,
        reason: Some(StopReason::HostRestart),
        limits: spec.limits,
        network: spec.network,
        created_at,
        timings: Timings::default(),
        awaits_deletion: false,
        deadlines: None,
    };
    Record::new(info, spec, IdRange { base: 0, count: 0 })
}

/// A record that cannot be parsed.
struct CorruptRecord;

/// A sandbox's id and directory, and its record; `None` if it has none.
type StoredRecord = (SandboxId, PathBuf, Option<Result<Record, CorruptRecord>>);

/// Reads all records.
fn read_all(sandboxes: &Path) -> Result<Vec<StoredRecord>, Error> {
    let failed = |error: std::io::Error| host_file_error("read", sandboxes, &error);
    let mut all = Vec::new();
    for entry in fs::read_dir(sandboxes).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(id) = id_of_path(&path) else {
            continue;
        };
        let record = match Record::read(&path) {
            Ok(record) => record.map(Ok),
            Err(RecordError::Corrupt) => Some(Err(CorruptRecord)),
            Err(RecordError::Io(error)) => {
                return Err(
                    error.remedy("nothing was changed: check the disk, then start atoll again")
                );
            }
        };
        all.push((id, path, record));
    }
    Ok(all)
}

fn id_of_path(path: &Path) -> Option<SandboxId> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Removes the contents of a directory in the background.
fn empty_in_background(directory: &Path) {
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
