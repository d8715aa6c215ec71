//! Sandboxes that run but cannot be adopted: their keeper has an incompatible protocol version, or
//! a resource that adoption needs is missing.
//!
//! They keep running and are shown as their record says. They can be stopped and deleted, which
//! needs only their control groups; once stopped they are like any other sandbox.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use atoll_jail::cgroup::Group;
use atoll_model::{Code, Error, SandboxId, SandboxState, StopReason};

use super::{Entry, LocalRuntime, Place, Shared};
use crate::error::jail;
use crate::exec::table::ExecTable;
use crate::keeper::previous::Foreign;
use crate::network::Link;
use crate::sandbox::{Linked, Record, blocking, lock};

/// Interval between two checks whether the processes are gone.
const EVERY: Duration = Duration::from_millis(500);

/// A running sandbox that cannot be adopted.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(super) record: Record,
    directory: PathBuf,
    group: Group,
    /// Its network link, which stays as it is.
    link: Mutex<Option<Link>>,
    /// Error for every operation but stop and delete.
    why: Error,
}

impl Apart {
    pub(super) fn new(shared: &Shared, directory: PathBuf, record: Record, why: Error) -> Self {
        let (id, ids) = (&record.info.id, record.ids());
        shared.instance.ranges.inherit(ids);
        let remedy = "its programs continue; to use it here, stop it and start it again";
        let why = why.remedy(remedy).detail("sandboxID", id.as_str());
        Self {
            group: shared.instance.cgroups.group(id.as_str(), ids),
            record,
            directory,
            link: Mutex::default(),
            why,
        }
    }

    /// A sandbox whose keeper has this protocol version.
    pub(super) fn foreign(
        shared: &Shared,
        directory: PathBuf,
        record: Record,
        version: u32,
    ) -> Self {
        let message = format!(
            "the sandbox was made by another version of atoll (protocol {version}), which this one cannot speak with"
        );
        Self::new(
            shared,
            directory,
            record,
            Error::new(Code::Conflict, message),
        )
    }

    /// Error for operations that need the keeper or PID 1.
    pub(super) fn refusal(&self) -> Error {
        self.why.clone()
    }

    pub(super) fn linked(&self) -> Option<Linked> {
        self.record.linked
    }

    pub(super) fn relink(&self, link: Option<Link>) {
        if let Some(link) = &link {
            link.keep_on_drop();
        }
        *lock(&self.link) = link;
    }

    pub(super) fn is_alive(&self) -> bool {
        self.group.is_inhabited()
    }

    /// Its execs; call this only after all of them have ended.
    pub(super) fn execs(&self, shared: &Shared) -> Arc<ExecTable> {
        Arc::new(shared.table(&self.record.info.id, &self.directory, false))
    }

    /// Kills its processes and removes its control groups and its link; its files stay.
    pub(super) async fn end(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        let group = self.group.clone();
        let end = move || {
            group.kill().map_err(|error| jail(&error))?;
            group.remove().map_err(|error| jail(&error))
        };
        blocking(end).await?;
        drop(lock(&self.link).take());
        shared.instance.ranges.release(self.record.ids());
        Ok(())
    }

    /// Writes a stopped record and returns the state of the stopped sandbox.
    pub(super) fn stopped(
        &self,
        shared: &Shared,
        reason: Option<StopReason>,
    ) -> Result<Place, Error> {
        let mut record = self.record.clone();
        record.info.state = SandboxState::Stopped;
        record.info.reason = reason;
        record.linked = None;
        record.write(&self.directory)?;
        Ok(Place::Stopped(Box::new(record), self.execs(shared)))
    }
}

impl LocalRuntime {
    /// Adds one to the table and watches for its exit.
    pub(super) fn add_apart(&self, apart: Apart) {
        let id = apart.record.info.id.clone();
        let apart = Arc::new(apart);
        let entry = Entry::new(Place::Apart(Arc::clone(&apart)));
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(watch_over(shared, Arc::downgrade(&entry), apart));
        lock(&self.shared.sandboxes).insert(id, entry);
    }

    /// Dismisses incompatible keepers if no unadoptable sandbox but `but` is left.
    pub(super) async fn dismiss_keepers(&self, but: Option<&SandboxId>) {
        dismiss_keepers(&self.shared, but).await;
    }
}

/// Updates the table when the processes of an unadoptable sandbox have ended.
async fn watch_over(shared: Weak<Shared>, entry: Weak<Entry>, apart: Arc<Apart>) {
    while apart.is_alive() {
        tokio::time::sleep(EVERY).await;
        if entry.strong_count() == 0 {
            return;
        }
    }
    let (Some(shared), Some(entry)) = (shared.upgrade(), entry.upgrade()) else {
        return;
    };
    let _gate = entry.gate.lock().await;
    if !matches!(entry.place(), Place::Apart(_)) {
        return;
    }
    let ended = apart.end(&shared).await;
    let stopped = ended.and_then(|()| apart.stopped(&shared, Some(StopReason::Exited)));
    if let Ok(stopped) = stopped {
        entry.set(stopped);
        shared.ended.send_replace(());
        dismiss_keepers(&shared, None).await;
    }
}

async fn dismiss_keepers(shared: &Arc<Shared>, but: Option<&SandboxId>) {
    let is_apart = |(id, entry): &(SandboxId, Arc<Entry>)| {
        Some(id) != but && matches!(entry.place(), Place::Apart(_))
    };
    if shared.entries().iter().any(is_apart) {
        return;
    }
    let foreign: Vec<Foreign> = std::mem::take(&mut lock(&shared.foreign));
    if foreign.is_empty() {
        return;
    }
    let run = shared.instance.directory.join("run");
    let _ = blocking(move || {
        if let Ok(directory) = std::fs::File::open(run) {
            for keeper in &foreign {
                keeper.dismiss(directory.as_fd());
            }
        }
        Ok(())
    })
    .await;
}
