//! Resources that a sandbox holds for its execs: descriptors in the keeper for the next server, exec
//! ends in PID 1, and cgroups (leaves) with the attribution of OOM kills.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_jail::cgroup::{End, Leaf};
use atoll_model::Error;

use super::Sandbox;
use crate::error::jail;
use crate::sync::lock;

/// Request ids to release; sent with the next message to PID 1 or to the keeper.
#[derive(Debug, Default)]
pub(super) struct PendingReleases {
    acked: Vec<u32>,
    released: Vec<u32>,
}

/// Leaves of a sandbox; all are removed with it.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// Leaves of ended execs that still have processes.
    populated: Vec<Arc<Leaf>>,
    /// Empty leaves for reuse.
    spare: Vec<Leaf>,
}

impl Sandbox {
    /// Passes descriptors of an exec to the keeper.
    pub(crate) async fn hold(
        &self,
        request: u32,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let released = std::mem::take(&mut lock(&self.pending_releases).released);
        let keeper = &self.keeper;
        keeper
            .hold(self.token, request, released, descriptors)
            .await
    }

    /// The end of an exec is recorded, so PID 1 can forget it.
    pub(crate) fn ack_exec_end(&self, request: u32) {
        lock(&self.pending_releases).acked.push(request);
    }

    /// Takes the exec ends that PID 1 can forget.
    pub(crate) fn take_acked(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.pending_releases).acked)
    }

    /// The streams of an exec are at their end, so the keeper can close them.
    pub(crate) fn release(&self, request: u32) {
        lock(&self.pending_releases).released.push(request);
    }

    /// Releases an exec in the keeper at once.
    pub(crate) async fn release_now(&self, request: u32) {
        self.release(request);
        // A keeper that has exited holds nothing.
        let _ = self.hold(request, &[]).await;
    }

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
