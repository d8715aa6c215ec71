//! Going on with the sandboxes of a server that is gone.
//!
//! Records say what there should be, keepers what there is. Running and known to a keeper: taken over. Known to none:
//! stopped, its files are there. Known to the keeper alone: never told to anybody, ended when nobody waits: a server leaves some
//! hundred embryos, and the next one has more to do than to end them. A record that cannot be understood is
//! set aside with its files, not removed. One that cannot be read stops everything before it begins.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_jail::plan::IdRange;
use atoll_model::{Error, SandboxId, SandboxInfo, SandboxSpec, SandboxState, StopReason, Timings};

use super::apart::Apart;
use super::{Entry, LocalRuntime, Place};
use crate::error::host_file;
use crate::exec::stdin::StdinQueue;
use crate::keeper::Found;
use crate::keeper::left::Inventory;
use crate::sandbox::{Record, Sandbox, Unread, blocking, boot, lock};
use crate::trash::{Item, Living};

impl LocalRuntime {
    /// Goes on with what the last server left.
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
            // That it is gone will be noticed soon enough.
            let _ = keeper.accept().await;
        }
        self.dismiss_keepers(None).await;
        for item in unknown {
            self.shared.trash.throw(item);
        }
        Ok(())
    }

    /// Those that nobody was told of are not ended yet.
    fn take_all_over(&self, inventory: Inventory) -> Result<Vec<Item>, Error> {
        let instance = &self.shared.instance;
        let sandboxes = instance.sandboxes();
        // Before anything is changed: a record that the host does not give us is not one that is not there.
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
                // It never came to be.
                None => unknown.push(self.unknown(id, &path, found)),
                Some(Err(Senseless)) => self.orphan(&id, &path),
            }
        }
        // Without files there is nobody to be.
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
        let aside = crate::orphans::place(&instance.directory);
        let known = |id: &SandboxId| {
            let mut places = [&sandboxes, &aside].into_iter();
            places.any(|at| at.join(id.as_str()).exists()) || ending(id)
        };
        instance.disk.sweep(&known)?;
        Ok(unknown)
    }

    /// Takes one over. One that cannot be goes on, apart from the others; one that waited in the pool is nobody's.
    fn take_one_over(
        &self,
        path: PathBuf,
        mut record: Record,
        found: Option<Found>,
        (keeper_stayed, foreign): (bool, Option<u32>),
    ) -> Option<Item> {
        let (id, pooled) = (record.info.id.clone(), record.pooled);
        // A warm one has the certificate authorities of the server that made it.
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
                // Nobody was told of it.
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
            // What cannot be written down now the next server finds as we did.
            let _ = record.write(&path);
            self.shared.note_record(&id);
            let _ = group.remove();
        }
        // Nothing reads what its commands were given.
        StdinQueue::remove_stale(&path.join("execs"), &HashSet::new());
        let execs = Arc::new(self.shared.table(&id, &path, false));
        let entry = Entry::new(Place::Stopped(Box::new(record), execs));
        lock(&self.shared.sandboxes).insert(id, entry);
        None
    }

    /// Removes layers of certificate authorities that no living sandbox is mounted from.
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

    /// Sets one aside of which nobody will ever know what it was. If it cannot be, it stays as it is.
    fn orphan(&self, id: &SandboxId, path: &Path) {
        crate::orphans::mark(path);
        let aside = crate::orphans::place(&self.shared.instance.directory);
        if fs::rename(path, aside.join(id.as_str())).is_ok() {
            self.kill(id.as_str());
        }
    }

    /// Makes a sandbox a stopped one again whose record a power cut destroyed, from what the control plane knows of it. False
    /// if there are no files of it. Its variables are lost, and its layer is the one its template has now.
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
        let aside = crate::orphans::place(&instance.directory).join(id.as_str());
        let path = instance.sandbox(&id);
        match fs::rename(&aside, &path) {
            Ok(()) => crate::orphans::unmark(&path),
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

    /// Goes on with the links of sandboxes that live. One whose link is not there any more gets another.
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
            // One that cannot be linked is on its way out, and with it its link went.
            let _ = tokio::runtime::Handle::current().block_on(another);
        }
        Ok(())
    }

    /// What is to be taken away of a sandbox that no caller was ever told of.
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

    /// What can be ended later, with its ids, which nobody else gets until then. The rest is ended at once: a keeper of another
    /// version goes with the last of its own.
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

/// A record that nobody will ever understand.
struct Senseless;

/// A directory of a sandbox, and what stands there.
type Written = (SandboxId, PathBuf, Option<Result<Record, Senseless>>);

/// All records.
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

/// Empties a directory, off the way of everybody.
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
