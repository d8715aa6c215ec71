//! Deletion of sandboxes. The row is marked as deleted first; the session's history is kept.

use std::sync::Arc;

use atoll_model::{Code, Error, SandboxId, SandboxState, StopReason, lock};
use atoll_store::SandboxRow;

use crate::live_sandboxes::{LiveSandbox, LockedSandbox};
use crate::{Core, Inner, RequestContext, run_to_completion};

impl Core {
    /// Deletes a sandbox with its files. Of several concurrent calls, one succeeds and the others return 404.
    pub async fn delete(&self, context: &RequestContext, name: &str) -> Result<(), Error> {
        let entry = self.find_writable(context, name)?;
        self.delete_live(entry).await
    }

    pub(crate) async fn delete_live(&self, entry: Arc<LiveSandbox>) -> Result<(), Error> {
        self.delete_if(entry, |_| true, None).await
    }

    /// Deletes a sandbox if its row fulfils a condition once its transition lock is held. `reason` is `None` for a delete by
    /// request.
    pub(crate) async fn delete_if(
        &self,
        entry: Arc<LiveSandbox>,
        condition: impl Fn(&SandboxRow) -> bool + Send + 'static,
        reason: Option<StopReason>,
    ) -> Result<(), Error> {
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.inner.sandboxes.lock(entry).await?;
            if !locked.entry.read(condition) {
                return Ok(());
            }
            core.delete_locked(&locked, reason).await
        })
        .await
    }

    /// Like [`Self::delete`], for a caller that holds the lock.
    pub(crate) async fn delete_locked(
        &self,
        locked: &LockedSandbox,
        reason: Option<StopReason>,
    ) -> Result<(), Error> {
        let entry = &locked.entry;
        let before = entry.row();
        // The processes of an expired sandbox have ended: a read waits for the deletion and does not see `stopping`.
        if before.state.has_processes() && reason.is_none() {
            entry.set_transient_state(SandboxState::Stopping, None);
        }
        // From here on the sandbox is deleted, now or at the next start of the server.
        let written = entry.update(&self.inner.store, |row| {
            // For a paused sandbox, this was the time of the pause.
            if before.state == SandboxState::Paused {
                row.stopped_at = None;
            }
            row.state = SandboxState::Stopped;
            row.reason = reason.or(before.reason);
            row.stopped_at.get_or_insert_with(|| self.now());
            row.deleted_at = Some(self.now());
            row.end_at = None;
        });
        if let Err(error) = written.await {
            entry.set_transient_state(before.state, before.reason);
            return Err(error);
        }
        self.inner.sandboxes.remove(&before.id);
        self.inner.remove_from_runtime(&before.id).await
    }

    /// Deletes all sandboxes of all orgs. Continues after failures and returns the first one.
    pub async fn delete_all(&self) -> Result<(), Error> {
        let mut failed = None;
        for entry in self.inner.sandboxes.all() {
            let id = entry.read(|row| row.id.clone());
            match self.delete_live(entry).await {
                // 404: a concurrent delete was first.
                Err(error) if error.code != Code::SandboxNotFound => {
                    tracing::error!(sandbox = %id, %error, "failed to delete sandbox");
                    failed.get_or_insert(error);
                }
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Inner {
    /// Removes a deleted sandbox from the runtime. A failure is retried later.
    pub(crate) async fn remove_from_runtime(&self, id: &SandboxId) -> Result<(), Error> {
        let gone = match self.runtime.delete(id).await {
            Err(error) if error.code != Code::SandboxNotFound => Err(error),
            _ => Ok(()),
        };
        let mut pending_deletes = lock(&self.pending_deletes);
        if gone.is_err() {
            pending_deletes.insert(id.clone());
        } else {
            pending_deletes.remove(id);
        }
        gone
    }
}
