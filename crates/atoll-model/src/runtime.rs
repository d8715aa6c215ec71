//! The runtime: the interface through which the control plane and the HTTP routes reach sandboxes.
//!
//! A runtime executes requests and authorizes nothing: callers check permissions first. It has a lifecycle half
//! ([`Lifecycle`], [`Templates`]), which a control plane calls, and a data half ([`Uses`], [`Execs`], [`Files`], [`Ports`]), which
//! the routes for commands, files, terminals and ports call. The worker crate implements both for the sandboxes of its
//! machine.
//!
//! Methods that may need a network are `async` even where the local implementation answers from memory.

mod execs;
mod files;
mod lifecycle;
mod ports;
mod templates;
mod uses;

pub use execs::{
    ExecHandle, ExecResult, Execs, LogFollower, LogLine, OutputStream, TerminalAttachment,
};
pub use files::{ArchiveWriter, ByteSink, FileReader, FileWatch, FileWriter, Files};
pub use lifecycle::{
    DeadlineClock, HistorySink, JournalStatus, Lifecycle, Recovery, Reservation, RuntimeStatus,
};
pub use ports::{PortConnection, Ports};
pub use templates::{
    ArchiveStream, DEFAULT_TEMPLATE, TemplateInfo, TemplateOptions, TemplateUser, Templates,
};
pub use uses::{OpenedUse, UseGuard, Uses};

/// Both halves of a runtime.
pub trait Runtime: Lifecycle + Templates + Uses + Execs + Files + Ports {}

impl<T: Lifecycle + Templates + Uses + Execs + Files + Ports + ?Sized> Runtime for T {}
