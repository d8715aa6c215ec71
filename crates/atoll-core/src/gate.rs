//! May this caller touch this sandbox now, and does it run.

use std::sync::Arc;

use atoll_model::{Code, Error, SandboxId, SandboxState, Scope};
use atoll_worker::LocalRuntime;

use crate::ledger::Entry;
use crate::{Context, Core};

/// How many watches a sandbox may have at once.
pub(crate) const WATCHES: usize = 64;

/// Somebody uses a sandbox, which is not idle as long as this lives; or only looks at it.
#[derive(Debug)]
pub struct Use {
    kind: Kind,
    id: SandboxId,
    entry: Arc<Entry>,
    runtime: LocalRuntime,
}

/// Whether it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Use,
    Look,
}

impl Use {
    fn new(core: &Core, entry: Arc<Entry>, kind: Kind) -> Self {
        if kind == Kind::Use {
            entry.begin_use();
        }
        Self {
            kind,
            id: entry.with(|row| row.id.clone()),
            entry,
            runtime: core.inner.runtime.clone(),
        }
    }

    /// The sandbox.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// What runs it.
    pub fn runtime(&self) -> &LocalRuntime {
        &self.runtime
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// It is being used right now, for uses that take long.
    pub fn touch(&self) {
        self.entry.touch();
    }
}

/// Somebody watches a directory of a sandbox, which only so many may do at once.
#[derive(Debug)]
pub struct Watching(Use);

impl Use {
    /// Goes on as one of the sandbox's watches.
    pub fn watching(self) -> Result<Watching, Error> {
        if self.entry.begin_watch(WATCHES) {
            return Ok(Watching(self));
        }
        Err(too_many_watches())
    }
}

pub(crate) fn too_many_watches() -> Error {
    let message = format!("the sandbox has {WATCHES} watches already");
    Error::new(Code::QuotaExceeded, message)
        .remedy("end one of them, or watch a directory above with recursive=true")
}

impl std::ops::Deref for Watching {
    type Target = Use;

    fn deref(&self) -> &Use {
        &self.0
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.entry.end_watch();
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if self.kind == Kind::Use {
            self.entry.end_use();
        }
    }
}

impl Core {
    /// Lets a caller use a sandbox; one that is paused goes on, if it may.
    pub async fn enter(&self, context: &Context, name: &str, scope: Scope) -> Result<Use, Error> {
        context.require(scope)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.enter_entry(entry).await
    }

    pub(crate) async fn enter_entry(&self, entry: Arc<Entry>) -> Result<Use, Error> {
        let (state, wakes) = entry.with(|row| (row.state, row.lifetime.auto_resume));
        let used = Use::new(self, entry, Kind::Use);
        match state {
            SandboxState::Running => Ok(used),
            SandboxState::Paused if wakes => {
                self.resume_entry(&used.entry, None).await?;
                Ok(used)
            }
            state => Err(state.refusal("used")),
        }
    }

    /// Lets a caller look at a sandbox in whatever state: what it uses, the logs of its commands. That is no use of
    /// it.
    pub fn look(&self, context: &Context, name: &str) -> Result<Use, Error> {
        self.at(context, name, Kind::Look)
    }

    /// Lets a caller follow what happens in a sandbox in whatever state, which holds it as a use does.
    pub fn follow(&self, context: &Context, name: &str) -> Result<Use, Error> {
        self.at(context, name, Kind::Use)
    }

    fn at(&self, context: &Context, name: &str, kind: Kind) -> Result<Use, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        Ok(Use::new(self, entry, kind))
    }
}
