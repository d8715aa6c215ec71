//! Atoll's nouns: ids, sizes, limits, what can be asked for and what can go wrong. No I/O but the
//! system's random source for new ids, no clock, no runtime.

mod error;
mod exec;
mod file;
mod id;
mod network;
mod sandbox;
mod size;

#[cfg(test)]
mod tests;

pub use error::{Category, Code, Error};
pub use exec::{ExecSpec, ExecStatus, Input, Program};
pub use file::{Authority, Caller, Entry, EntryKind, WriteOptions};
pub use id::SandboxId;
pub use network::{Block, Network, Policy, REFUSED, Rule, SANDBOXES, Verdict, is_refused};
pub use sandbox::{HostMount, Limits, SandboxInfo, SandboxSpec, SandboxState, Timings, Usage};
pub use size::{Bytes, Cpus, parse_duration};
