//! Sandboxes on this machine: instances, templates, root file systems, execs and files.
//!
//! [`LocalRuntime`] is what the rest of Atoll sees. It carries out and decides nothing about who may
//! do what. Only `atoll-jail` makes namespace, mount or filter calls; this crate says when.

mod error;
mod exec;
mod files;
mod init;
pub mod instance;
mod keeper;
pub mod network;
mod runtime;
mod sandbox;
pub mod template;
pub mod tree;

pub use exec::{Control, Exec, Finished, Output};
pub use files::{Reader, Writer};
pub use runtime::{Amend, Config, LocalRuntime, check_host};
