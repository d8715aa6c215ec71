//! Going on with the sandboxes of a server that is gone.
//!
//! Records say what there should be, the keeper what there is. Running and known to the keeper: taken
//! over. Not known to it: stopped, its files are there. Known to the keeper alone: never told to
//! anybody, ended. A record that cannot be understood is set aside with its files, not removed.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use atoll_model::{Error, Reason, SandboxId, SandboxState};

use super::{Entry, LocalRuntime, Place};
use crate::error::host_file;
use crate::exec::table::Table;
use crate::keeper::{Found, Inventory};
use crate::sandbox::{Record, Sandbox, blocking, boot, lock};

impl LocalRuntime {
    /// Goes on with what the last server left.
    pub(super) async fn take_over(&self, inventory: Inventory) -> Result<(), Error> {
        let runtime = self.clone();
        let handle = tokio::runtime::Handle::current();
        blocking(move || {
            let _entered = handle.enter();
            runtime.take_all_over(inventory)
        })
        .await?;
        // That it is gone will be noticed soon enough.
        let _ = self.shared.keeper.accept().await;
        Ok(())
    }

    fn take_all_over(&self, inventory: Inventory) -> Result<(), Error> {
        let keeper_stayed = !inventory.sandboxes.is_empty();
        let mut found: HashMap<String, Found> = inventory
            .sandboxes
            .into_iter()
            .map(|found| (found.name.clone(), found))
            .collect();
        let instance = &self.shared.instance;
        let sandboxes = instance.sandboxes();
        let entries = fs::read_dir(&sandboxes);
        let entries = entries.map_err(|error| host_file("read", &sandboxes, &error))?;
        for entry in entries {
            let path = entry
                .map_err(|error| host_file("read", &sandboxes, &error))?
                .path();
            let Some(id) = name_of(&path) else { continue };
            match Record::read(&path) {
                Ok(Some(record)) => {
                    self.take_one_over(&path, record, found.remove(id.as_str()), keeper_stayed)?;
                }
                // It never came to be.
                Ok(None) => self.end_unknown(&id, &path, found.remove(id.as_str())),
                Err(_) => {
                    let aside = instance.directory.join("orphaned").join(id.as_str());
                    if let Some(found) = found.remove(id.as_str()) {
                        self.kill(&found.name);
                    }
                    let moved = fs::rename(&path, &aside);
                    moved.map_err(|error| host_file("set aside", &path, &error))?;
                }
            }
        }
        // Without files there is nobody to be.
        for found in found.into_values() {
            self.kill(&found.name);
        }
        for name in instance.cgroups.names() {
            let Ok(id) = name.parse::<SandboxId>() else {
                continue;
            };
            let live = self.entry(&id).map(|entry| entry.place());
            if !matches!(live, Ok(Place::Live(_))) && !self.shared.pool.has(&id) {
                self.kill(&name);
            }
        }
        instance.ranges.release_others();
        self.reconnect()?;
        let aside = instance.directory.join("orphaned");
        let known = |id: &SandboxId| {
            [&sandboxes, &aside]
                .iter()
                .any(|at| at.join(id.as_str()).exists())
        };
        instance.disk.sweep(&known)?;
        empty(&instance.directory.join("trash"));
        Ok(())
    }

    fn take_one_over(
        &self,
        path: &Path,
        mut record: Record,
        found: Option<Found>,
        keeper_stayed: bool,
    ) -> Result<(), Error> {
        let id = record.info.id.clone();
        let ran = record.info.state != SandboxState::Stopped;
        let alive = found.as_ref().is_some_and(|found| found.parent.pid != 0);
        if ran
            && alive
            && let Some(found) = found
        {
            let pooled = record.pooled;
            let sandbox = Sandbox::adopt(&self.shared, path.to_owned(), record, found)?;
            if pooled {
                self.shared.pool.asked(&sandbox.info().template);
                let _ = self.shared.pool.add(sandbox);
            } else {
                self.add(&sandbox);
            }
            return Ok(());
        }
        if record.pooled {
            self.end_unknown(&id, path, None);
            return Ok(());
        }
        if ran {
            record.info.state = SandboxState::Stopped;
            record.info.reason = Some(if record.boot != boot() {
                Reason::HostRestart
            } else if keeper_stayed {
                Reason::Exited
            } else {
                Reason::KeeperLost
            });
            record.write(path)?;
            let group = self
                .shared
                .instance
                .cgroups
                .group(id.as_str(), record.ids());
            let _ = group.remove();
        }
        let mark = self.shared.mark(&id);
        let execs = Arc::new(Table::new(path.join("execs"), false, mark));
        let entry = Entry::new(Place::Stopped(Box::new(record), execs));
        lock(&self.shared.sandboxes).insert(id, entry);
        Ok(())
    }

    /// Goes on with the links of sandboxes that live. One whose link is not there any more gets another.
    fn reconnect(&self) -> Result<(), Error> {
        let entries: Vec<_> = self.sandboxes().values().cloned().collect();
        let live = entries.into_iter().filter_map(|entry| match entry.place() {
            Place::Live(sandbox) => sandbox.linked().map(|linked| (sandbox, linked)),
            _ => None,
        });
        let mut live: Vec<_> = live.collect();
        let Some(gateway) = live.first().map(|(_, (linked, _))| linked.gateway) else {
            return self.shared.network.start_over();
        };
        live.retain(|(_, (linked, _))| linked.gateway == gateway);
        let known: Vec<_> = live
            .iter()
            .map(|(_, (linked, policy))| (linked.address, policy.clone()))
            .collect();
        let links = self.shared.network.resume(gateway, &known)?;
        for ((sandbox, (_, policy)), link) in live.into_iter().zip(links) {
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

    /// Takes away what no caller was ever told of.
    fn end_unknown(&self, id: &SandboxId, path: &Path, found: Option<Found>) {
        if let Some(found) = found {
            self.kill(&found.name);
        }
        let target = self
            .shared
            .instance
            .directory
            .join("trash")
            .join(id.as_str());
        let _ = fs::rename(path, target);
    }

    fn kill(&self, name: &str) {
        let ids = atoll_jail::plan::IdRange { base: 0, count: 0 };
        let group = self.shared.instance.cgroups.group(name, ids);
        let _ = group.kill();
        let _ = group.remove();
    }
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
