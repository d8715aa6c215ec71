//! Sandboxes that run and that this server cannot speak with: their keeper is of a version that it does not understand, or
//! something is missing to take them over. They go on, and are shown as they were written down. They can be stopped and
//! deleted, for which only their control groups are needed; a stopped one is like any other.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use atoll_jail::cgroup::Group;
use atoll_model::{Code, Error, SandboxId, SandboxState, StopReason};

use super::{Entry, LocalRuntime, Place, Shared};
use crate::error::jail;
use crate::exec::table::ExecTable;
use crate::keeper::left::Foreign;
use crate::network::Link;
use crate::sandbox::{Linked, Record, blocking, lock};

/// How often is asked whether one is gone.
const EVERY: Duration = Duration::from_millis(500);

/// One of them.
#[derive(Debug)]
pub(crate) struct Apart {
    pub(super) record: Record,
    directory: PathBuf,
    group: Group,
    /// Its link with the world stays as it is.
    link: Mutex<Option<Link>>,
    /// What a caller is told who wants something else of it.
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

    /// Of a keeper that says this version.
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

    /// Why it cannot be used.
    pub(super) fn refusal(&self) -> Error {
        self.why.clone()
    }

    /// Its link, for who goes on with all of them.
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

    /// Its commands, once they have all ended.
    pub(super) fn execs(&self, shared: &Shared) -> Arc<ExecTable> {
        Arc::new(shared.table(&self.record.info.id, &self.directory, false))
    }

    /// Ends its processes and takes everything away but its files.
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

    /// It has only files now.
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
    /// Takes one among ours.
    pub(super) fn add_apart(&self, apart: Apart) {
        let id = apart.record.info.id.clone();
        let apart = Arc::new(apart);
        let entry = Entry::new(Place::Apart(Arc::clone(&apart)));
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(watch_over(shared, Arc::downgrade(&entry), apart));
        lock(&self.shared.sandboxes).insert(id, entry);
    }

    /// Lets keepers go that we do not speak with, if they have none of ours any more.
    pub(super) async fn dismiss_keepers(&self, but: Option<&SandboxId>) {
        dismiss_keepers(&self.shared, but).await;
    }
}

/// Notices when one has ended by itself.
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
