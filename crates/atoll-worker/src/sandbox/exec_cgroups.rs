//! Cgroups of execs (leaves), and attribution of OOM kills.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_jail::cgroup::{End, Leaf};
use atoll_model::Error;

use super::Sandbox;
use crate::error::jail;
use crate::sync::lock;

/// Leaves of a sandbox; all are removed with it.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// Leaves of ended execs that still have processes.
    populated: Vec<Arc<Leaf>>,
    /// Empty leaves for reuse.
    spare: Vec<Leaf>,
}

impl Sandbox {
    /// Attributes one OOM kill after `before` kills to the calling exec, if there is an
    /// unattributed one. The kernel counts per sandbox, so each kill is attributed once.
    pub(crate) fn claim_oom_kill(&self, before: u64) -> bool {
        let kills = self.group.oom_kills();
        let claim = |attributed: u64| {
            let known = attributed.max(before);
            (kills > known).then_some(known + 1)
        };
        let claimed = self
            .oom_kills
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        claimed.is_ok()
    }

    /// A leaf for an exec, reused or new.
    pub(crate) fn leaf(&self, request: u32) -> Result<Leaf, Error> {
        if let Some(leaf) = lock(&self.leaves).spare.pop() {
            return Ok(leaf);
        }
        let leaf = self.group.leaf(&format!("x{request}"));
        leaf.map_err(|error| jail(&error))
    }

    /// Takes back the leaf of an ended exec. While it has processes it is checked again whenever a
    /// later exec ends.
    pub(crate) fn retire_leaf(&self, leaf: Arc<Leaf>) {
        let mut leaves = lock(&self.leaves);
        leaves.populated.push(leaf);
        let Leaves { populated, spare } = &mut *leaves;
        populated.retain(|leaf| match leaf.end() {
            End::Lingers => true,
            End::Gone => false,
            End::Spare(leaf) => {
                spare.push(leaf);
                false
            }
        });
    }
}
