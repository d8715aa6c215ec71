//! Deletion of sandboxes, with their files or after moving the files elsewhere.

use std::path::PathBuf;

use atoll_model::{Error, SandboxId, SandboxState};

use super::states::Stopped;
use super::{EntryState, LocalRuntime};
use crate::error::host_file_error;
use crate::sandbox::run_blocking;
use crate::trash::Item;

impl LocalRuntime {
    /// Deletes a sandbox, after its remaining commands were passed to the history sink. Its
    /// processes, limits and directory are gone when this returns; disk space is released a little
    /// later.
    pub async fn delete(&self, id: &SandboxId) -> Result<(), Error> {
        let _time = self.time("delete");
        self.end(id, None).await
    }

    /// Ends a sandbox's processes and moves its files to a directory on the same file system.
    pub async fn export_files(&self, id: &SandboxId, directory: PathBuf) -> Result<(), Error> {
        if !self.shared.instance.storage.can_export() {
            return Err(cannot_keep());
        }
        self.end(id, Some(directory)).await
    }

    /// Ends the processes of a sandbox without a row and moves its files to `orphaned/`.
    pub async fn move_to_orphaned(&self, id: &SandboxId) -> Result<(), Error> {
        let instance = &self.shared.instance;
        crate::orphans::write_marker(&instance.sandbox(id));
        let target = crate::orphans::directory(&instance.directory).join(id.as_str());
        // Files in a storage image stay where they are.
        self.end(id, Some(target)).await
    }

    async fn end(&self, id: &SandboxId, export_to: Option<PathBuf>) -> Result<(), Error> {
        self.shared.foreground.record_activity();
        let name = id.clone();
        let ended = self.transition(id, |runtime, entry, state| async move {
            let shared = &runtime.shared;
            match &state {
                EntryState::Live(sandbox) => {
                    sandbox.state.send_replace(SandboxState::Stopping);
                    sandbox.stop(shared).await?;
                    if export_to.is_some() {
                        sandbox
                            .update_record(|record| record.info.state = SandboxState::Stopped)?;
                    }
                }
                EntryState::Unadoptable(sandbox) => {
                    sandbox.end(shared).await?;
                    sandbox.mark_stopped(shared, Stopped::on_request())?;
                    runtime.dismiss_keepers(Some(&name)).await;
                }
                EntryState::Stopped(..) | EntryState::Gone => {}
            }
            if export_to.is_none() {
                runtime.flush_history(&name, &entry, &state).await?;
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
