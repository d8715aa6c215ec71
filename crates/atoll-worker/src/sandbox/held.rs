//! What the keeper holds of execs for a server that comes later, and until when PID 1 remembers them.

use std::os::fd::BorrowedFd;

use atoll_model::Error;

use super::{Sandbox, lock};

/// Execs that need not be remembered any more; told with the next word to whoever does.
#[derive(Debug, Default)]
pub(super) struct Over {
    forgotten: Vec<u32>,
    released: Vec<u32>,
}

impl Sandbox {
    /// Has the keeper hold descriptors of an exec.
    pub(crate) async fn hold(
        &self,
        request: u32,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let released = std::mem::take(&mut lock(&self.over).released);
        let keeper = &self.keeper;
        keeper
            .hold(self.token, request, released, descriptors)
            .await
    }

    /// The end of an exec is written down.
    pub(crate) fn forget(&self, request: u32) {
        lock(&self.over).forgotten.push(request);
    }

    /// Execs that PID 1 may forget.
    pub(crate) fn forgotten(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.over).forgotten)
    }

    /// The streams of an exec are at their end.
    pub(crate) fn release(&self, request: u32) {
        lock(&self.over).released.push(request);
    }

    /// Has the keeper give something up at once.
    pub(crate) async fn release_now(&self, request: u32) {
        self.release(request);
        // A keeper that is gone holds nothing.
        let _ = self.hold(request, &[]).await;
    }
}
