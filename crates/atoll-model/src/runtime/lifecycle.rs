//! Lifecycle half of a runtime: creation, state changes, limits, network and deletion of sandboxes.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use prometheus_client::registry::Registry;

use crate::{
    CommandRow, Deadlines, Error, Limits, Network, NetworkPolicy, SandboxId, SandboxInfo,
    SandboxSpec, SandboxState,
};

/// Lifecycle of the sandboxes of a runtime. Every change runs to completion even if the caller is cancelled, and has
/// taken effect when it returns.
#[async_trait]
pub trait Lifecycle: Debug + Send + Sync {
    /// Prepares a sandbox and determines its id. The caller stores the id and then creates or releases the sandbox.
    async fn reserve(&self, spec: SandboxSpec) -> Result<Box<dyn Reservation>, Error>;

    /// All sandboxes, newest first.
    async fn list(&self) -> Result<Vec<SandboxInfo>, Error>;

    /// State and limits of a sandbox.
    async fn get(&self, id: &SandboxId) -> Result<SandboxInfo, Error>;

    /// State of a sandbox as this process knows it, without a request. `None` if it does not.
    fn known_state(&self, id: &SandboxId) -> Option<SandboxState>;

    /// The specification that a sandbox was created with, with later changes.
    async fn spec(&self, id: &SandboxId) -> Result<SandboxSpec, Error>;

    /// Starts the processes of a stopped sandbox, on its files.
    async fn start(&self, id: &SandboxId) -> Result<SandboxInfo, Error>;

    /// Ends the processes of a sandbox. Its files stay, and are synced to the disk when this returns.
    async fn stop(&self, id: &SandboxId) -> Result<SandboxInfo, Error>;

    /// Freezes the processes of a sandbox.
    async fn pause(&self, id: &SandboxId) -> Result<SandboxInfo, Error>;

    /// Thaws the processes of a sandbox.
    async fn resume(&self, id: &SandboxId) -> Result<SandboxInfo, Error>;

    /// Changes the limits of a sandbox.
    async fn set_limits(&self, id: &SandboxId, limits: Limits) -> Result<SandboxInfo, Error>;

    /// Changes the network and the policy of a sandbox.
    async fn set_network(
        &self,
        id: &SandboxId,
        network: Network,
        policy: NetworkPolicy,
    ) -> Result<SandboxInfo, Error>;

    /// Sets the timeouts and deadlines that the runtime enforces from now on, also while the control plane is away.
    async fn set_deadlines(&self, id: &SandboxId, deadlines: Deadlines) -> Result<(), Error>;

    /// Resets the idle timer of a sandbox.
    async fn keep_alive(&self, id: &SandboxId) -> Result<(), Error>;

    /// State and limits of a sandbox after the state change that is in progress, if there is one.
    async fn get_settled(&self, id: &SandboxId) -> Result<SandboxInfo, Error>;

    /// Deletes a sandbox with its files, after its remaining history was passed to the [`HistorySink`].
    async fn delete(&self, id: &SandboxId) -> Result<(), Error>;

    /// Ends the processes of a sandbox without a row and keeps its files apart, for a while.
    async fn move_to_orphaned(&self, id: &SandboxId) -> Result<(), Error>;

    /// Restores a sandbox from files that were kept apart. `None` if there are no such files. `spec` and `created_at`,
    /// in microseconds since 1970, replace a record that was lost.
    async fn recover(
        &self,
        id: &SandboxId,
        spec: SandboxSpec,
        created_at: i64,
    ) -> Result<Option<Recovery>, Error>;

    /// Removes files that were kept apart for the full retention. `now` is in microseconds since 1970.
    async fn remove_old_orphans(&self, now: i64) -> Result<(), Error>;

    /// Passes all commands of a sandbox that the [`HistorySink`] does not have yet to it.
    async fn sync_history(&self, id: &SandboxId) -> Result<(), Error>;

    /// Whether the kernel enforces the disk limits of sandboxes.
    fn enforces_disk_limits(&self) -> bool;

    /// Current state. A remote runtime returns what its worker reported last.
    fn status(&self) -> RuntimeStatus;

    /// Registers the metrics of the runtime.
    fn register(&self, registry: &mut Registry);

    /// Closes the runtime. Sandboxes of a persistent instance keep running.
    async fn close(&self) -> Result<(), Error>;
}

/// A sandbox that is prepared and has no owner yet. Dropping it releases it.
#[async_trait]
pub trait Reservation: Debug + Send {
    /// The id that the sandbox will have.
    fn id(&self) -> &SandboxId;

    /// Creates the sandbox. Execs work when this returns.
    async fn create(self: Box<Self>) -> Result<SandboxInfo, Error>;

    /// Gives the sandbox back. Its id may be reserved again.
    async fn release(self: Box<Self>);
}

/// Destination of the commands that a runtime has recorded.
#[async_trait]
pub trait HistorySink: Debug + Send + Sync {
    /// Stores commands of a sandbox, new ones and ends of known ones. A repeated call with the same rows changes nothing.
    async fn append(&self, sandbox: &SandboxId, rows: &[CommandRow]) -> Result<(), Error>;
}

/// Clock by which a runtime converts deadlines, and which can hold them.
pub trait DeadlineClock: Debug + Send + Sync {
    /// Server time at a time of `CLOCK_BOOTTIME`. Both in microseconds.
    fn at(&self, boottime: i64) -> i64;

    /// `CLOCK_BOOTTIME` at a server time.
    fn boottime_at(&self, at: i64) -> i64;

    /// Whether nothing expires for now, because the system clock was set.
    fn is_held(&self) -> bool;
}

/// How a sandbox was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// With its own record.
    Intact,
    /// With a new record: its environment variables are lost.
    WithoutRecord,
}

/// State of a runtime, for health checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeStatus {
    /// Number of warm sandboxes.
    pub warm: usize,
    /// Number of embryos.
    pub embryos: usize,
    /// State of the journals. `None` if commands are not recorded.
    pub journal: Option<JournalStatus>,
    /// Age of the oldest acknowledged change of a sandbox that a power failure could still undo. Writes by programs in
    /// running sandboxes do not count.
    pub oldest_unsynced: Duration,
}

/// State of the journals of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalStatus {
    /// Sandboxes with rows that are not written yet.
    pub behind: usize,
    /// Failed writes since the start of the server.
    pub failures: u64,
    /// Commands that were evicted before they were written.
    pub lost: u64,
}
