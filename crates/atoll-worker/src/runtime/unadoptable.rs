//! Sandboxes that run but cannot be adopted: their keeper has an incompatible protocol version, or
//! a resource that adoption needs is missing.
//!
//! They keep running and are shown as their record says. They can be stopped and deleted, which
//! needs only their control groups; once stopped they are like any other sandbox.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use atoll_jail::cgroup::SandboxCgroup;
use atoll_model::{Code, Error, SandboxId, StopReason};

use super::states::Stopped;
use super::{EntryState, LocalRuntime, RuntimeState, SandboxEntry};
use crate::error::jail;
use crate::exec::table::ExecTable;
use crate::keeper::previous::IncompatibleKeeper;
use crate::network::Link;
use crate::sandbox::{LinkRecord, Record, run_blocking};
use crate::sync::lock;

/// Interval between two checks whether the processes are gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A running sandbox that cannot be adopted.
#[derive(Debug)]
pub(crate) struct Unadoptable {
    pub(super) record: Record,
    directory: PathBuf,
    group: SandboxCgroup,
    /// Its network link, which stays as it is.
    link: Mutex<Option<Link>>,
    /// Error for every operation but stop and delete.
    reason: Error,
}

impl Unadoptable {
    pub(super) fn new(
        shared: &RuntimeState,
        directory: PathBuf,
        record: Record,
        reason: Error,
    ) -> Self {
        let (id, ids) = (&record.info.id, record.ids());
        shared.instance.ranges.inherit(ids);
        let remedy = "its programs keep running; to use it with this version, stop and start it";
        let reason = reason.remedy(remedy).detail("sandboxID", id.as_str());
        Self {
            group: shared.instance.cgroups.group(id.as_str(), ids),
            record,
            directory,
            link: Mutex::default(),
            reason,
        }
    }

    /// A sandbox whose keeper has this protocol version.
    pub(super) fn incompatible(
        shared: &RuntimeState,
        directory: PathBuf,
        record: Record,
        version: u32,
    ) -> Self {
        let message = format!(
            "the sandbox was created by another version of atoll (protocol {version}), which this version does not support"
        );
        Self::new(
            shared,
            directory,
            record,
            Error::new(Code::Conflict, message),
        )
    }

    /// Error for operations that need the keeper or PID 1.
    pub(super) fn error(&self) -> Error {
        self.reason.clone()
    }

    pub(super) fn link_record(&self) -> Option<LinkRecord> {
        self.record.linked
    }

    pub(super) fn relink(&self, link: Option<Link>) {
        if let Some(link) = &link {
            link.keep_on_drop();
        }
        *lock(&self.link) = link;
    }

    pub(super) fn is_alive(&self) -> bool {
        self.group.is_populated()
    }

    /// Its execs; call this only after all of them have ended.
    pub(super) fn execs(&self, shared: &RuntimeState) -> Arc<ExecTable> {
        Arc::new(shared.table(&self.record.info.id, &self.directory, false))
    }

    /// Kills its processes and removes its control groups and its link; its files stay.
    pub(super) async fn end(&self, shared: &Arc<RuntimeState>) -> Result<(), Error> {
        let group = self.group.clone();
        let end = move || {
            group.kill().map_err(|error| jail(&error))?;
            group.remove().map_err(|error| jail(&error))
        };
        run_blocking(end).await?;
        drop(lock(&self.link).take());
        shared.instance.ranges.release(self.record.ids());
        Ok(())
    }

    /// Writes a stopped record and returns the state of the stopped sandbox.
    pub(super) fn mark_stopped(
        &self,
        shared: &RuntimeState,
        stopped: Stopped,
    ) -> Result<EntryState, Error> {
        let mut record = self.record.clone();
        stopped.apply(&mut record);
        record.linked = None;
        record.write(&self.directory)?;
        Ok(EntryState::Stopped(Box::new(record), self.execs(shared)))
    }
}

impl LocalRuntime {
    /// Adds one to the table and watches for its exit.
    pub(super) fn add_unadoptable(&self, sandbox: Unadoptable) {
        let id = sandbox.record.info.id.clone();
        let sandbox = Arc::new(sandbox);
        let entry = SandboxEntry::new(EntryState::Unadoptable(Arc::clone(&sandbox)));
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(watch_exit(shared, Arc::downgrade(&entry), sandbox));
        lock(&self.shared.sandboxes).insert(id, entry);
    }

    /// Dismisses incompatible keepers if no unadoptable sandbox but `but` is left.
    pub(super) async fn dismiss_keepers(&self, but: Option<&SandboxId>) {
        dismiss_keepers(&self.shared, but).await;
    }
}

/// Updates the table when the processes of an unadoptable sandbox have ended.
async fn watch_exit(
    shared: Weak<RuntimeState>,
    entry: Weak<SandboxEntry>,
    sandbox: Arc<Unadoptable>,
) {
    while sandbox.is_alive() {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if entry.strong_count() == 0 {
            return;
        }
    }
    let (Some(shared), Some(entry)) = (shared.upgrade(), entry.upgrade()) else {
        return;
    };
    let _transition = entry.transition_lock.lock().await;
    if !matches!(entry.state(), EntryState::Unadoptable(_)) {
        return;
    }
    let ended = sandbox.end(&shared).await;
    let stopped =
        ended.and_then(|()| sandbox.mark_stopped(&shared, Stopped::by_itself(StopReason::Exited)));
    if let Ok(stopped) = stopped {
        entry.set_state(stopped);
        shared.publish_change(&sandbox.record.info.id);
        dismiss_keepers(&shared, None).await;
    }
}

async fn dismiss_keepers(shared: &Arc<RuntimeState>, but: Option<&SandboxId>) {
    let is_unadoptable = |(id, entry): &(SandboxId, Arc<SandboxEntry>)| {
        Some(id) != but && matches!(entry.state(), EntryState::Unadoptable(_))
    };
    if shared.entries().iter().any(is_unadoptable) {
        return;
    }
    let keepers: Vec<IncompatibleKeeper> = std::mem::take(&mut lock(&shared.incompatible_keepers));
    if keepers.is_empty() {
        return;
    }
    let run = shared.instance.directory.join("run");
    let _ = run_blocking(move || {
        if let Ok(directory) = std::fs::File::open(run) {
            for keeper in &keepers {
                keeper.dismiss(directory.as_fd());
            }
        }
        Ok(())
    })
    .await;
}
