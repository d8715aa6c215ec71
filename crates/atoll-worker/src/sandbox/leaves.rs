//! The control groups of execs, and whose end was want of memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_jail::cgroup::{End, Leaf};
use atoll_model::Error;

use super::{Sandbox, lock};
use crate::error::jail;

/// Directories of execs, all removed with the sandbox.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// Of ended execs whose children live on.
    lingering: Vec<Arc<Leaf>>,
    /// Empty ones.
    spare: Vec<Leaf>,
}

impl Sandbox {
    /// The kernel killed for want of memory since it had done so often, and no command that ended by that was told yet. It
    /// counts for the sandbox, not for each command: one kill is told of one.
    pub(crate) fn claim_oom_kill(&self, before: u64) -> bool {
        let kills = self.group.oom_kills();
        let claim = |told: u64| {
            let known = told.max(before);
            (kills > known).then_some(known + 1)
        };
        let claimed = self
            .oom_kills
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        claimed.is_ok()
    }

    /// A directory of cgroup2 for an exec: one that an ended exec gave up, or a new one.
    pub(crate) fn leaf(&self, request: u32) -> Result<Leaf, Error> {
        if let Some(leaf) = lock(&self.leaves).spare.pop() {
            return Ok(leaf);
        }
        let made = self.group.leaf(&format!("x{request}"));
        made.map_err(|error| jail(&error))
    }

    /// Takes the directory of an ended exec back. Children that live on keep theirs until they are
    /// found gone when a later exec ends.
    pub(crate) fn leave(&self, leaf: Arc<Leaf>) {
        let mut leaves = lock(&self.leaves);
        leaves.lingering.push(leaf);
        let Leaves { lingering, spare } = &mut *leaves;
        lingering.retain(|leaf| match leaf.end() {
            End::Lingers => true,
            End::Gone => false,
            End::Spare(leaf) => {
                spare.push(leaf);
                false
            }
        });
    }
}
