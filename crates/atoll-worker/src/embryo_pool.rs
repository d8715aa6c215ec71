//! Pool of embryos: PID 1 processes in their namespaces and limits that have no spec yet.
//!
//! They are prepared one by one while no request is in flight. A create that takes one saves the
//! `clone` call and the RCU grace period that attaching to v1 control groups takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::runtime::Shared;
use crate::sandbox::{Embryo, lock};

/// The embryos of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Nursery {
    /// Target number of embryos.
    size: usize,
    ready: Mutex<VecDeque<Embryo>>,
    /// Notified when an embryo was taken or refilling was stopped.
    taken: Notify,
    closed: AtomicBool,
}

impl Nursery {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    /// Takes an embryo whose process is alive.
    pub(crate) fn take(&self) -> Option<Embryo> {
        let mut ready = lock(&self.ready);
        let taken = std::iter::from_fn(|| ready.pop_front()).find(Embryo::lives);
        // Also if there was none: capacity may be available again.
        self.taken.notify_one();
        taken
    }

    /// Number of embryos.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    /// Keeps the pool at its size until [`EmbryoPool::stop_refill`].
    pub(crate) async fn tend(shared: Arc<Shared>) {
        let nursery = &shared.nursery;
        while nursery.size > 0 && !nursery.closed.load(Ordering::Acquire) {
            if nursery.len() >= nursery.size {
                nursery.taken.notified().await;
                continue;
            }
            // Creates have priority.
            shared.busy.calm().await;
            let Ok(mut embryo) = Embryo::in_advance(&shared).await else {
                // No capacity now; a create returns the error itself.
                nursery.taken.notified().await;
                continue;
            };
            if embryo.settle().await.is_ok() && !nursery.closed.load(Ordering::Acquire) {
                lock(&nursery.ready).push_back(embryo);
            } else {
                embryo.give_back(&shared).await;
            }
        }
    }

    /// Prepares no more embryos.
    pub(crate) fn shut(&self) {
        self.closed.store(true, Ordering::Release);
        self.taken.notify_one();
    }

    /// Ends all embryos.
    pub(crate) async fn close(shared: &Arc<Shared>) {
        while let Some(embryo) = shared.nursery.take() {
            embryo.give_back(shared).await;
        }
    }
}
