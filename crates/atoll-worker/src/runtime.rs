//! Sandboxes on this machine.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_jail::facts::Facts;
use atoll_jail::plan::Plan;
use atoll_jail::wire::FileWork;
use atoll_model::{
    Bytes, Caller, Code, Entry, Error, ExecSpec, SandboxId, SandboxInfo, SandboxSpec, Usage,
    WriteOptions,
};
use std::os::fd::AsFd;

use crate::error::{host_file, internal};
use crate::exec::{self, Exec};
use crate::files::{self, Reader, Writer};
use crate::instance::Instance;
use crate::keeper::Keeper;
use crate::sandbox::{Sandbox, blocking};
use crate::template;

/// Changes a plan before it is carried out. Attack tests take one defence away with it, to show
/// that the same attack would then succeed; nothing else has a use for it.
pub type Amend = Arc<dyn Fn(&mut Plan) + Send + Sync>;

/// How a runtime is set up.
#[derive(Clone)]
pub struct Config {
    /// The data directory; templates are in `templates/` below it.
    pub data: PathBuf,
    /// The binary keepers are started from; its `main` calls `atoll_jail::keeper::run_if_asked`.
    pub binary: PathBuf,
    /// See [`Amend`].
    pub amend: Option<Amend>,
}

impl Config {
    /// The usual: this very program, below a data directory.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            binary: "/proc/self/exe".into(),
            amend: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

/// What the parts of a runtime share.
pub(crate) struct Shared {
    pub(crate) facts: Facts,
    pub(crate) instance: Instance,
    pub(crate) templates: template::Store,
    pub(crate) keeper: Keeper,
    pub(crate) amend: Option<Amend>,
    /// Held shared by every create under way, whose caller may have gone.
    busy: Arc<tokio::sync::RwLock<()>>,
    /// The keeper is being moved to its control group.
    settled: tokio::task::JoinHandle<()>,
    sandboxes: Mutex<HashMap<SandboxId, Place>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// Where a sandbox is in its life here.
#[derive(Debug)]
enum Place {
    Running(Arc<Sandbox>),
    /// It is being deleted; nobody else may touch it.
    Leaving,
}

/// The sandboxes of one instance on this machine.
#[derive(Debug, Clone)]
pub struct LocalRuntime {
    shared: Arc<Shared>,
}

impl LocalRuntime {
    /// Starts a small instance of its own. End it with [`LocalRuntime::close`]: a runtime that is
    /// merely dropped leaves its directory to `atoll gc`.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let binary = config.binary.clone();
        let shared = blocking(move || {
            let facts = Facts::read();
            crate::instance::data_directory(&config.data)?;
            let templates = template::Store::open(config.data.join("templates"))
                .map_err(|error| internal("open the templates", &error))?;
            let instance = Instance::ephemeral(&config.data, &facts)?;
            Ok((facts, templates, instance, config.amend))
        });
        let (facts, templates, instance, amend) = shared.await?;
        let keeper = Keeper::start(
            &binary,
            &instance.tag,
            &[instance.lock.as_fd(), instance.ranges.as_fd()],
        )?;
        let (cgroups, pid) = (instance.cgroups.clone(), keeper.pid());
        // Beside the first create: it may take as long as all the rest. A keeper that stays where
        // it was started works as well.
        let settled = tokio::task::spawn_blocking(move || drop(cgroups.adopt(pid)));
        let shared = Shared {
            facts,
            instance,
            templates,
            keeper,
            amend,
            settled,
            busy: Arc::default(),
            sandboxes: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Place>> {
        self.shared
            .sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What this host can do.
    pub fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    /// The instance's tag.
    pub fn tag(&self) -> &str {
        &self.shared.instance.tag
    }

    /// Makes a sandbox; an exec works when this returns. A caller that goes away does not leave
    /// half of one.
    pub async fn create(&self, spec: SandboxSpec) -> Result<SandboxInfo, Error> {
        let runtime = self.clone();
        let work = tokio::spawn(async move {
            let _busy = Arc::clone(&runtime.shared.busy).read_owned().await;
            // Dropped before the guard: who waits for that may count on being the last.
            let runtime = runtime;
            let sandbox = Sandbox::create(&runtime.shared, SandboxId::random(), spec).await?;
            let info = sandbox.info.clone();
            runtime
                .sandboxes()
                .insert(info.id.clone(), Place::Running(Arc::new(sandbox)));
            Ok(info)
        });
        work.await
            .map_err(|error| internal("a create failed", &error))?
    }

    /// All sandboxes, newest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        let mut all: Vec<SandboxInfo> = self
            .sandboxes()
            .values()
            .filter_map(|place| match place {
                Place::Running(sandbox) => Some(sandbox.info.clone()),
                Place::Leaving => None,
            })
            .collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.created_at));
        all
    }

    fn find(&self, id: &SandboxId) -> Result<Arc<Sandbox>, Error> {
        let sandbox = match self.sandboxes().get(id) {
            Some(Place::Running(sandbox)) => Arc::clone(sandbox),
            _ => return Err(unknown(id)),
        };
        if sandbox.died.borrow().is_some() {
            return Err(
                Error::new(Code::SandboxStopped, format!("sandbox {id} has ended"))
                    .remedy("delete it and make another")
                    .detail("state", "stopped"),
            );
        }
        Ok(sandbox)
    }

    /// Deletes a sandbox: its processes, its limits and its files are gone when this returns (the
    /// disk space a little later).
    pub async fn delete(&self, id: &SandboxId) -> Result<(), Error> {
        self.end(id, None).await
    }

    /// Ends a sandbox's processes and moves its files to a directory of the caller's choice on the
    /// same file system.
    pub async fn keep(&self, id: &SandboxId, directory: PathBuf) -> Result<(), Error> {
        self.end(id, Some(directory)).await
    }

    async fn end(&self, id: &SandboxId, keep: Option<PathBuf>) -> Result<(), Error> {
        let sandbox = {
            let mut sandboxes = self.sandboxes();
            match sandboxes.get_mut(id) {
                Some(place @ Place::Running(_)) => match std::mem::replace(place, Place::Leaving) {
                    Place::Running(sandbox) => sandbox,
                    Place::Leaving => return Err(unknown(id)),
                },
                _ => return Err(unknown(id)),
            }
        };
        // Once begun it is finished, whether or not the caller waits for it.
        let (runtime, id) = (self.clone(), id.clone());
        let work = tokio::spawn(async move {
            let ended = runtime.finish(&sandbox, keep).await;
            let mut sandboxes = runtime.sandboxes();
            match ended {
                Ok(()) => {
                    sandboxes.remove(&id);
                    Ok(())
                }
                Err(error) => {
                    // It can be tried again.
                    sandboxes.insert(id, Place::Running(sandbox));
                    Err(error)
                }
            }
        });
        work.await
            .map_err(|error| internal("a delete failed", &error))?
    }

    async fn finish(&self, sandbox: &Arc<Sandbox>, keep: Option<PathBuf>) -> Result<(), Error> {
        sandbox.stop(&self.shared).await?;
        let kept = keep.is_some();
        let target = keep.unwrap_or_else(|| {
            self.shared
                .instance
                .directory
                .join("trash")
                .join(sandbox.info.id.as_str())
        });
        let (sandbox, rename_to) = (Arc::clone(sandbox), target.clone());
        blocking(move || {
            if kept {
                sandbox.record_stopped()?;
            }
            std::fs::rename(sandbox.directory(), &rename_to)
                .map_err(|error| host_file("move to", &rename_to, &error))
        })
        .await?;
        if !kept {
            tokio::task::spawn_blocking(move || {
                // What is left over is removed with the instance.
                let _ = crate::instance::remove_directory(&target);
            });
        }
        Ok(())
    }

    /// What a sandbox uses now.
    pub fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let usage = self.find(id)?.group.usage();
        Ok(Usage {
            cpu: usage.cpu,
            memory: Bytes(usage.memory),
            pids: usage.pids,
        })
    }

    /// The pid of a sandbox's PID 1, as the host sees it.
    pub fn host_pid(&self, id: &SandboxId) -> Result<i32, Error> {
        Ok(self.find(id)?.pid)
    }

    /// Starts a command.
    pub async fn exec(&self, id: &SandboxId, spec: ExecSpec) -> Result<Exec, Error> {
        exec::start(self.find(id)?, spec).await
    }

    /// Reads a file as a stream.
    pub async fn read_file(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
    ) -> Result<Reader, Error> {
        files::read(self.find(id)?, caller, path, 0, None).await
    }

    /// Reads a part of a file as a stream.
    pub async fn read_part(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        offset: u64,
        length: u64,
    ) -> Result<Reader, Error> {
        files::read(self.find(id)?, caller, path, offset, Some(length)).await
    }

    /// Writes a file as a stream.
    pub async fn write_file(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        options: WriteOptions,
    ) -> Result<Writer, Error> {
        files::write(self.find(id)?, caller, path, options).await
    }

    async fn work(&self, id: &SandboxId, caller: &Caller, work: FileWork) -> Result<(), Error> {
        files::simple(self.find(id)?, caller, work, 1)
            .await
            .map(|_| ())
    }

    /// Describes a path; with `follow`, what a symbolic link points to.
    pub async fn stat(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        follow: bool,
    ) -> Result<Entry, Error> {
        let work = FileWork::Stat {
            path: path.into(),
            follow,
        };
        let (entries, _) = files::simple(self.find(id)?, caller, work, 1).await?;
        entries
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(Code::Internal, "the sandbox did not describe the file"))
    }

    /// Lists what is below a directory, `depth` levels deep and at most `limit` entries; says
    /// whether something was left out.
    pub async fn list_files(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        depth: u32,
        limit: u32,
    ) -> Result<(Vec<Entry>, bool), Error> {
        let work = FileWork::List {
            path: path.into(),
            depth,
            limit,
        };
        files::simple(self.find(id)?, caller, work, limit as usize).await
    }

    /// Makes a directory; with `parents`, missing ones above it too, and it may be there already.
    pub async fn make_directory(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        mode: u32,
        parents: bool,
    ) -> Result<(), Error> {
        self.work(
            id,
            caller,
            FileWork::Mkdir {
                path: path.into(),
                parents,
                mode,
            },
        )
        .await
    }

    /// Removes a file or directory.
    pub async fn remove(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        recursive: bool,
    ) -> Result<(), Error> {
        self.work(
            id,
            caller,
            FileWork::Remove {
                path: path.into(),
                recursive,
            },
        )
        .await
    }

    /// Renames.
    pub async fn rename(
        &self,
        id: &SandboxId,
        caller: &Caller,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error> {
        self.work(
            id,
            caller,
            FileWork::Rename {
                from: from.into(),
                to: to.into(),
                replace,
            },
        )
        .await
    }

    /// Copies a file, or a directory with all that is in it.
    pub async fn copy(
        &self,
        id: &SandboxId,
        caller: &Caller,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error> {
        self.work(
            id,
            caller,
            FileWork::Copy {
                from: from.into(),
                to: to.into(),
                replace,
            },
        )
        .await
    }

    /// Sets permission bits.
    pub async fn chmod(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        mode: u32,
    ) -> Result<(), Error> {
        self.work(
            id,
            caller,
            FileWork::Chmod {
                path: path.into(),
                mode,
            },
        )
        .await
    }

    /// Sets owner and group; an empty name leaves one as it is.
    pub async fn chown(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        owner: &str,
        group: &str,
    ) -> Result<(), Error> {
        let work = FileWork::Chown {
            path: path.into(),
            owner: owner.into(),
            group: group.into(),
        };
        self.work(id, caller, work).await
    }

    /// Watches a directory; whatever happens after this returns is told.
    pub async fn watch(
        &self,
        id: &SandboxId,
        caller: &Caller,
        path: &[u8],
        options: atoll_model::WatchOptions,
    ) -> Result<crate::watch::Watch, Error> {
        crate::watch::watch(self.find(id)?, caller, path, options).await
    }

    /// Deletes all sandboxes and takes everything of the instance away.
    pub async fn close(self) -> Result<(), Error> {
        drop(self.shared.busy.write().await);
        let ids: Vec<SandboxId> = self.sandboxes().keys().cloned().collect();
        for id in ids {
            match self.delete(&id).await {
                Err(error) if error.code != Code::SandboxNotFound => return Err(error),
                _ => {}
            }
        }
        let Some(shared) = Arc::into_inner(self.shared) else {
            return Err(Error::new(Code::Conflict, "the runtime is still in use"));
        };
        let _ = shared.settled.await;
        shared.keeper.stop().await;
        let instance = shared.instance;
        blocking(move || instance.dismantle()).await
    }
}

/// Refuses a host on which no sandbox can be made, and says what would help.
pub fn check_host() -> Result<(), Error> {
    atoll_jail::plan::require(&Facts::read()).map_err(|error| crate::error::jail(&error))
}

fn unknown(id: &SandboxId) -> Error {
    Error::new(Code::SandboxNotFound, format!("there is no sandbox {id}"))
        .detail("sandboxID", id.as_str())
}
