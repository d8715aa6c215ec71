//! Sandboxes are deleted: the row says so first, and their history is kept.

use std::sync::{Arc, PoisonError};

use atoll_model::{Code, Error, SandboxId, SandboxState, SessionId, StopReason};

use super::states::{Still, always, shown_stopping};
use crate::ledger::Entry;
use crate::{Context, Core, Inner, history, outlast};

impl Core {
    /// Deletes a sandbox with its files. The first of several at once does it, the others find nothing.
    pub async fn delete(&self, context: &Context, name: &str) -> Result<(), Error> {
        let entry = self.own(context, name)?;
        self.delete_entry(entry).await
    }

    pub(crate) async fn delete_entry(&self, entry: Arc<Entry>) -> Result<(), Error> {
        self.delete_if(entry, always(), None).await
    }

    /// Deletes it if that is still right when nobody else changes it any more. `reason` is `None` for a delete that a
    /// caller asked for.
    pub(crate) async fn delete_if(
        &self,
        entry: Arc<Entry>,
        still: Still,
        reason: Option<StopReason>,
    ) -> Result<(), Error> {
        let core = self.clone();
        outlast(async move {
            let held = core.inner.ledger.hold(entry).await?;
            let entry = &held.entry;
            let before = entry.row();
            if !shown_stopping(entry, &before, &still, reason) {
                return Ok(());
            }
            // What a row says is deleted is, now or at the next start.
            let written = entry.write(&core.inner.store, |row| {
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
                entry.show(before.state, before.reason);
                return Err(error);
            }
            core.inner.ledger.remove(&before.id);
            core.inner.bury(&before.id, before.session).await
        })
        .await
    }

    /// Deletes every sandbox of every org: all that can be. The first failure, if there was one.
    pub async fn delete_all(&self) -> Result<(), Error> {
        let mut failed = None;
        for entry in self.inner.ledger.all() {
            let id = entry.with(|row| row.id.clone());
            match self.delete_entry(entry).await {
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
    pub(crate) async fn bury(&self, id: &SandboxId, session: SessionId) -> Result<(), Error> {
        let farewell = history::keep(&self.store, session.clone());
        let gone = match self.runtime.delete_after_flush(id, farewell).await {
            Err(error) if error.code != Code::SandboxNotFound => Err(error),
            _ => Ok(()),
        };
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        if gone.is_err() {
            leaving.insert(id.clone(), session);
        } else {
            leaving.remove(id);
        }
        gone
    }
}
