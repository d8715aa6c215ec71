//! Sandboxes are deleted: the row says so first, and their history is kept.

use std::sync::{Arc, PoisonError};

use atoll_model::{Code, Error, SandboxId, SandboxState, SessionId, StopReason};

use super::transitions::{Precondition, mark_stopping_if, unconditional};
use crate::live_sandboxes::LiveSandbox;
use crate::{Core, Inner, RequestContext, history, run_to_completion};

impl Core {
    /// Deletes a sandbox with its files. The first of several at once does it, the others find nothing.
    pub async fn delete(&self, context: &RequestContext, name: &str) -> Result<(), Error> {
        let entry = self.find_writable(context, name)?;
        self.delete_live(entry).await
    }

    pub(crate) async fn delete_live(&self, entry: Arc<LiveSandbox>) -> Result<(), Error> {
        self.delete_when(entry, unconditional(), None).await
    }

    /// Deletes it if that is still right when nobody else changes it any more. `reason` is `None` for a delete that a
    /// caller asked for.
    pub(crate) async fn delete_when(
        &self,
        entry: Arc<LiveSandbox>,
        still: Precondition,
        reason: Option<StopReason>,
    ) -> Result<(), Error> {
        let core = self.clone();
        run_to_completion(async move {
            let held = core.inner.sandboxes.lock(entry).await?;
            let entry = &held.entry;
            let before = entry.row();
            if !mark_stopping_if(entry, &before, &still, reason) {
                return Ok(());
            }
            // What a row says is deleted is, now or at the next start.
            let written = entry.update(&core.inner.store, |row| {
                // Until now it only stood still.
                if before.state == SandboxState::Paused {
                    row.stopped_at = None;
                }
                row.state = SandboxState::Stopped;
                row.reason = reason.or(before.reason);
                row.stopped_at.get_or_insert_with(|| core.now());
                row.deleted_at = Some(core.now());
                row.end_at = None;
            });
            if let Err(error) = written.await {
                entry.set_transient_state(before.state, before.reason);
                return Err(error);
            }
            core.inner.sandboxes.remove(&before.id);
            core.inner
                .remove_from_runtime(&before.id, before.session)
                .await
        })
        .await
    }

    /// Deletes every sandbox of every org: all that can be. The first failure, if there was one.
    pub async fn delete_all(&self) -> Result<(), Error> {
        let mut failed = None;
        for entry in self.inner.sandboxes.all() {
            let id = entry.read(|row| row.id.clone());
            match self.delete_live(entry).await {
                // Somebody else was quicker.
                Err(error) if error.code != Code::SandboxNotFound => {
                    tracing::error!(sandbox = %id, %error, "it cannot be deleted");
                    failed.get_or_insert(error);
                }
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Inner {
    /// Takes a sandbox away whose row says that it is deleted, once its history is kept. If that does not work now, it
    /// is tried again.
    pub(crate) async fn remove_from_runtime(
        &self,
        id: &SandboxId,
        session: SessionId,
    ) -> Result<(), Error> {
        let sink = history::history_sink(&self.store, session.clone());
        let gone = match self.runtime.delete_after_flush(id, sink).await {
            Err(error) if error.code != Code::SandboxNotFound => Err(error),
            _ => Ok(()),
        };
        let mut pending_deletes = self
            .pending_deletes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if gone.is_err() {
            pending_deletes.insert(id.clone(), session);
        } else {
            pending_deletes.remove(id);
        }
        gone
    }
}
