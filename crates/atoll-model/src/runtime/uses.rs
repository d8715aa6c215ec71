//! Uses of a runtime's sandboxes, which keep them from becoming idle.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::{Error, SandboxId};

/// Uses of the sandboxes of a runtime.
#[async_trait]
pub trait Uses: Debug + Send + Sync {
    /// Opens a running sandbox for a use. A paused one is resumed if its lifetime says so; any other state is an error.
    async fn open_use(&self, id: &SandboxId) -> Result<OpenedUse, Error>;

    /// Counts a use of a sandbox in any state.
    fn count_use(&self, id: &SandboxId) -> Box<dyn UseGuard>;
}

/// Result of [`Uses::open_use`].
#[derive(Debug)]
pub struct OpenedUse {
    /// Keeps the sandbox from becoming idle.
    pub guard: Box<dyn UseGuard>,
    /// Whether the sandbox was paused and was resumed.
    pub was_resumed: bool,
}

/// A use in progress: its sandbox is not idle until the guard is dropped.
pub trait UseGuard: Debug + Send + Sync {
    /// Resets the idle timer during a long use.
    fn record_activity(&self);
}
