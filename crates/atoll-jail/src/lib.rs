//! Isolation of sandboxes with kernel features: namespaces, mounts, cgroups, seccomp.
//!
//! Outside: [`facts`] (what this host can do), [`plan`] (pure: a spec and facts become a plan that
//! can be read, compared and tested), [`cgroup`] and [`rootfs`] (carry out the parts of a plan that
//! need the host), [`keeper`] (the single-threaded parent of every sandbox). Inside: `inside` (PID 1,
//! its execs and file helpers). Between them: [`wire`]; and for both [`archive`].
//!
//! Invariants: nothing is forked from a process that has threads (the keeper is started by exec);
//! the host never resolves a path that comes from a sandbox; this crate knows neither tokio nor the
//! model nor HTTP.
#![allow(
    unsafe_code,
    reason = "this crate is where system calls without a safe wrapper live"
)]

pub mod archive;
pub mod btrfs;
pub mod cgroup;
pub mod claims;
pub mod facts;
pub mod ids;
mod inside;
pub mod keeper;
pub mod loop_image;
pub mod netns;
pub mod pipes;
pub mod plan;
pub mod rootfs;
pub mod seccomp;
mod sys;
pub mod terminal;
pub mod wire;

pub use sys::{
    drop_cap_sys_resource, raise_autogroup_priority, raise_thread_priority, set_fifo_scheduling,
};

use std::io;

/// Failures of creating or running a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A step failed; the step names the path.
    #[error("{step}")]
    Step {
        /// The step that failed.
        step: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This host lacks a required feature.
    #[error("this host cannot provide {feature}: {why}; {remedy}")]
    Unsupported {
        /// The feature, as `atoll doctor` names it.
        feature: &'static str,
        /// Why not.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
}

impl Error {
    pub(crate) fn step(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Step {
            step: step.into(),
            source: source.into(),
        }
    }
}

/// Names the step that failed.
pub(crate) trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|error| Error::step(step(), error))
    }
}
