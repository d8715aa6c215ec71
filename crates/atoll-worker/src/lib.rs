//! Runtime of one machine: instances, templates, root file systems, sandboxes, execs and file
//! calls.
//!
//! [`LocalRuntime`] is the interface for the rest of Atoll. It executes requests and authorises
//! nothing: callers check permissions first. Namespace, mount and seccomp system calls are made
//! only by `atoll-jail`; this crate decides when.

mod authorities;
mod embryo_pool;
mod error;
mod exec;
mod files;
mod freezer;
mod in_flight;
mod init_channel;
pub mod instance;
mod journal;
mod keeper;
mod metrics;
pub mod network;
pub mod orphans;
mod reserve;
mod run_to_completion;
mod runtime;
mod samples;
mod sandbox;
mod screen;
pub mod storage;
mod sync;
mod syncer;
pub mod template;
mod trash;
pub mod tree;
mod warm_pool;
mod watch;

pub use exec::log_lines::LogFollower;
pub use exec::output::{OutputReader, StreamReader};
pub use exec::{ExecHandle, StartedExec, TerminalAttachment};
pub use files::archive::Unpacking;
pub use files::{FileReader, FileWriter};
pub use reserve::Reserve;
pub(crate) use run_to_completion::run_to_completion;
pub use runtime::{
    BeforeCreate, Config, ForegroundGuard, LocalRuntime, PlanOverride, PortWatch, check_host,
};
pub use screen::{Screen, Size};
pub use storage::Storage;
pub use watch::Watch;
