//! Data types that all crates share: ids, sizes, limits, requests, states and errors.
//!
//! The crate does no I/O, with two exceptions: new ids come from the kernel's random source, and [`Timer`] reads the
//! monotonic clock. Its Prometheus types (`metrics.rs`) are here because every crate above uses them.

mod error;
mod event_bus;
mod exception;
mod exec;
mod file;
mod history;
mod id;
mod lifetime;
mod lock;
mod metrics;
mod network;
mod org;
mod page;
pub mod runtime;
mod sandbox;
mod size;
mod state;
mod unsynced;
mod watch;

#[cfg(test)]
mod tests;

pub use error::{Category, Code, Error};
pub use event_bus::{EventBus, Notification, Subscription, Topic};
pub use exception::{EgressException, is_blocked_except};
pub use exec::{
    ExecInfo, ExecSpec, ExecStatus, Idempotency, OutputChunk, Program, Stdin, Stream, TerminalSize,
};
pub use file::{
    Attributes, Authority, FileDetails, FileEntry, FileKind, LinkTarget, RunAs, SearchHit,
    SearchQuery, UnpackSummary, WriteOptions,
};
pub use history::{CommandKind, CommandRow, Event};
pub use id::{EventId, ExecId, InstanceId, KeyId, OrgId, RequestId, RunName, SandboxId, SessionId};
pub use lifetime::{Deadlines, ExpiryAction, Lifetime};
pub use lock::lock;
pub use metrics::{LatencyFamily, OperationTimers, Timer, latency_family, latency_histogram};
pub use network::{
    BLOCKED_RANGES, Cidr, Network, NetworkPolicy, NetworkRule, PolicyAction, PortEvent,
    SANDBOX_RANGE, is_blocked,
};
pub use org::{Key, Org, Scope};
pub use page::{Cursor, Page, PageRequest};
pub use sandbox::{
    DiskUsage, HostMount, Limits, PortAccess, Sample, SandboxInfo, SandboxSpec, Timings, Usage,
};
pub use size::{Bytes, Cpus, parse_duration};
pub use state::{SandboxState, StopReason, Transition};
pub use unsynced::Unsynced;
pub use watch::{WatchEvent, WatchOptions};
