//! Atoll's nouns: ids, sizes, limits, what can be asked for and what can go wrong. No I/O but the
//! system's random source for new ids, no clock but a stopwatch, no runtime.

mod error;
mod exception;
mod exec;
mod file;
mod id;
mod lifetime;
mod meter;
mod network;
mod org;
mod sandbox;
mod size;
mod state;
mod unsynced;
mod watch;

#[cfg(test)]
mod tests;

pub use error::{Category, Code, Error};
pub use exception::{EgressException, is_closed};
pub use exec::{
    Again, Chunk, ExecInfo, ExecSpec, ExecStatus, Input, Program, Stream, TerminalSize,
};
pub use file::{
    Attributes, Authority, Caller, Described, Entry, EntryKind, Found, Search, Target, Unpacked,
    WriteOptions,
};
pub use id::{EventId, ExecId, InstanceId, KeyId, OrgId, RequestId, RunName, SandboxId, SessionId};
pub use lifetime::{ExpiryAction, Lifetime};
pub use meter::{Durations, Operations, Stopwatch, durations, durations_by};
pub use network::{
    Block, Network, Policy, PortEvent, REFUSED, Rule, SANDBOXES, Verdict, is_refused,
};
pub use org::{Key, Org, Scope};
pub use sandbox::{
    DiskUsage, HostMount, Limits, PortAccess, Sample, SandboxInfo, SandboxSpec, Timings, Usage,
};
pub use size::{Bytes, Cpus, parse_duration};
pub use state::{SandboxState, StopReason, Transition};
pub use unsynced::Unsynced;
pub use watch::{WatchEvent, WatchOptions};
