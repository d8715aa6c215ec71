//! Deletion of sandboxes, with their files or after moving the files elsewhere.

use std::path::PathBuf;

use atoll_model::{CommandRow, Error, SandboxId, SandboxState};

use super::{EntryState, LocalRuntime};
use crate::error::host_file_error;
use crate::sandbox::run_blocking;
use crate::trash::Item;

/// Called with the commands of a sandbox that the store does not have yet, before its files are
/// removed. An error keeps the files.
pub type HistoryFlush = Box<
    dyn FnOnce(Vec<CommandRow>) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>
        + Send,
>;

impl LocalRuntime {
    /// Deletes a sandbox. Its processes, limits and directory are gone when this returns; disk
    /// space is released a little later.
    pub async fn delete(&self, id: &SandboxId) -> Result<(), Error> {
        let _time = self.time("delete");
        self.end(id, None, None).await
    }

    /// Deletes a sandbox after its remaining commands were passed to `flush`.
    pub async fn delete_after_flush(
        &self,
        id: &SandboxId,
        flush: HistoryFlush,
    ) -> Result<(), Error> {
        let _time = self.time("delete");
        self.end(id, None, Some(flush)).await
    }

    /// Ends a sandbox's processes and moves its files to a directory on the same file system.
    pub async fn export_files(&self, id: &SandboxId, directory: PathBuf) -> Result<(), Error> {
        if !self.shared.instance.storage.can_export() {
            return Err(cannot_keep());
        }
        self.end(id, Some(directory), None).await
    }

    /// Ends the processes of a sandbox without a row and moves its files to `orphaned/`.
    pub async fn move_to_orphaned(&self, id: &SandboxId) -> Result<(), Error> {
        let instance = &self.shared.instance;
        crate::orphans::write_marker(&instance.sandbox(id));
        let target = crate::orphans::directory(&instance.directory).join(id.as_str());
        // Files in a storage image stay where they are.
        self.end(id, Some(target), None).await
    }

    async fn end(
        &self,
        id: &SandboxId,
        export_to: Option<PathBuf>,
        flush: Option<HistoryFlush>,
    ) -> Result<(), Error> {
        self.shared.foreground.record_activity();
        let name = id.clone();
        let ended = self.transition(id, |runtime, entry, state| async move {
            let shared = &runtime.shared;
            match &state {
                EntryState::Live(sandbox) => {
                    sandbox.state.send_replace(SandboxState::Stopping);
                    sandbox.stop(shared).await?;
                    if export_to.is_some() {
                        sandbox.update_record(|info| info.state = SandboxState::Stopped)?;
                    }
                }
                EntryState::Unadoptable(sandbox) => {
                    sandbox.end(shared).await?;
                    sandbox.mark_stopped(shared, None)?;
                    runtime.dismiss_keepers(Some(&name)).await;
                }
                EntryState::Stopped(..) | EntryState::Gone => {}
            }
            if let Some(flush) = flush {
                runtime.flush_history(&name, &entry, &state, flush).await?;
            }
            let (exported, from) = (export_to.is_some(), shared.instance.sandbox(&name));
            let target = export_to.unwrap_or_else(|| shared.instance.trash().join(name.as_str()));
            let to = target.clone();
            run_blocking(move || {
                std::fs::rename(&from, &to).map_err(|error| host_file_error("move to", &to, &error))
            })
            .await?;
            if let Ok((execs, _)) = entry.execs(&name) {
                execs.close();
            }
            entry.set_state(EntryState::Gone);
            runtime.sandboxes().remove(&name);
            if !exported {
                shared.trash.push(Item {
                    id: name,
                    directory: target,
                    processes: None,
                    _guard: shared.cleanup.begin(),
                });
            }
            Ok(())
        });
        ended.await.map(|_| ())
    }
}

fn cannot_keep() -> Error {
    Error::invalid(
        "keep",
        "files in a storage image cannot be kept",
        "download the files, or use storage = plain",
    )
}
