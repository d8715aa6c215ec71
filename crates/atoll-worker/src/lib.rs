//! Sandboxes on this machine: instances, templates, root file systems, execs and files.
//!
//! [`LocalRuntime`] is what the rest of Atoll sees. It carries out and decides nothing about who may
//! do what. Only `atoll-jail` makes namespace, mount or filter calls; this crate says when.

mod authorities;
mod busy;
mod error;
mod exec;
mod files;
mod freezer;
mod init;
pub mod instance;
mod journal;
mod keeper;
mod meters;
pub mod network;
mod nursery;
pub mod orphans;
mod outlast;
mod pool;
mod reserve;
mod runtime;
mod samples;
mod sandbox;
mod screen;
pub mod storage;
mod syncer;
pub mod template;
mod trash;
pub mod tree;
mod watch;

pub use exec::log_lines::{LogFollower, LogLine};
pub use exec::output::{OutputReader, StreamReader};
pub use exec::{ExecHandle, ExecResult, StartedExec, TerminalAttachment};
pub use files::archive::Unpacking;
pub use files::{FileReader, FileWriter};
pub use journal::JournalHealth;
pub use outlast::{Outlast, outlast};
pub use reserve::Reserve;
pub use runtime::{
    Amend, Announce, Attention, Config, Farewell, LocalRuntime, PortWatch, check_host,
};
pub use screen::{Screen, Size};
pub use storage::Storage;
pub use watch::Watch;
