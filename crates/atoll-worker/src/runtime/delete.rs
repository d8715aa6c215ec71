//! How a sandbox goes: with its files, or leaving them somewhere else.

use std::path::PathBuf;

use atoll_model::{Error, SandboxId, SandboxState};
use atoll_store::CommandRow;

use super::{LocalRuntime, Place};
use crate::error::host_file;
use crate::sandbox::blocking;
use crate::trash::Item;

/// Hears what was run in a sandbox that is about to be gone, as far as nobody has taken it yet. Its files go only if
/// that was kept.
pub type Farewell = Box<
    dyn FnOnce(Vec<CommandRow>) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>
        + Send,
>;

impl LocalRuntime {
    /// Deletes a sandbox: its processes, its limits and its files are gone when this returns (the
    /// disk space a little later).
    pub async fn delete(&self, id: &SandboxId) -> Result<(), Error> {
        let _time = self.time("delete");
        self.end(id, None, None).await
    }

    /// The same, for a caller who keeps what was run in it.
    pub async fn delete_after(&self, id: &SandboxId, farewell: Farewell) -> Result<(), Error> {
        let _time = self.time("delete");
        self.end(id, None, Some(farewell)).await
    }

    /// Ends a sandbox's processes and moves its files to a directory of the caller's choice on the
    /// same file system.
    pub async fn keep(&self, id: &SandboxId, directory: PathBuf) -> Result<(), Error> {
        if !self.shared.instance.disk.can_keep() {
            return Err(cannot_keep());
        }
        self.end(id, Some(directory), None).await
    }

    /// Ends the processes of a sandbox that nobody knows of, and puts its files where they are found and not
    /// in the way.
    pub async fn set_aside(&self, id: &SandboxId) -> Result<(), Error> {
        let instance = &self.shared.instance;
        crate::orphans::mark(&instance.sandbox(id));
        let aside = crate::orphans::place(&instance.directory).join(id.as_str());
        // What is in an image stays where it is.
        self.end(id, Some(aside), None).await
    }

    async fn end(
        &self,
        id: &SandboxId,
        keep: Option<PathBuf>,
        farewell: Option<Farewell>,
    ) -> Result<(), Error> {
        self.shared.busy.touch();
        let name = id.clone();
        let ended = self.change(id, |runtime, entry, place| async move {
            let shared = &runtime.shared;
            match &place {
                Place::Live(sandbox) => {
                    sandbox.state.send_replace(SandboxState::Stopping);
                    sandbox.stop(shared).await?;
                    if keep.is_some() {
                        sandbox.write_down(|info| info.state = SandboxState::Stopped)?;
                    }
                }
                Place::Apart(apart) => {
                    apart.end(shared).await?;
                    apart.stopped(shared, None)?;
                    runtime.dismiss_keepers(Some(&name)).await;
                }
                Place::Stopped(..) | Place::Gone => {}
            }
            if let Some(farewell) = farewell {
                runtime.part(&name, &entry, &place, farewell).await?;
            }
            let (kept, from) = (keep.is_some(), shared.instance.sandbox(&name));
            let target = keep.unwrap_or_else(|| shared.instance.trash().join(name.as_str()));
            let to = target.clone();
            blocking(move || {
                std::fs::rename(&from, &to).map_err(|error| host_file("move to", &to, &error))
            })
            .await?;
            if let Ok((execs, _)) = entry.execs(&name) {
                execs.close();
            }
            entry.set(Place::Gone);
            runtime.sandboxes().remove(&name);
            if !kept {
                shared.trash.throw(Item {
                    id: name,
                    directory: target,
                    living: None,
                    _work: shared.aftermath.begin(),
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
        "what a sandbox wrote to an image cannot be kept beside it",
        "download what you need, or use storage = plain",
    )
}
