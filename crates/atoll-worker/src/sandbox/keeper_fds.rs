//! Descriptors of execs that the keeper holds for the next server, and exec ends that PID 1 can
//! forget.

use std::os::fd::BorrowedFd;

use atoll_model::Error;

use super::Sandbox;
use crate::sync::lock;

/// Request ids to release; sent with the next message to PID 1 or to the keeper.
#[derive(Debug, Default)]
pub(super) struct PendingReleases {
    acked: Vec<u32>,
    released: Vec<u32>,
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
}
