//! Embryos: PID 1s in their namespaces and limits that wait to become somebody's sandbox. Made one by one
//! while nobody waits for anything, so that a create need not clone, nor wait for the grace period
//! that v1 control groups take.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::runtime::Shared;
use crate::sandbox::{Embryo, lock};

/// The embryos of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Nursery {
    /// How many there should be.
    size: usize,
    ready: Mutex<VecDeque<Embryo>>,
    /// One was taken.
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

    /// One that still waits.
    pub(crate) fn take(&self) -> Option<Embryo> {
        let mut ready = lock(&self.ready);
        let taken = std::iter::from_fn(|| ready.pop_front()).find(Embryo::lives);
        // Also if there was none: there may be room for some again.
        self.taken.notify_one();
        taken
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    /// Makes embryos until there are enough, and again whenever one was taken.
    pub(crate) async fn tend(shared: Arc<Shared>) {
        let nursery = &shared.nursery;
        while nursery.size > 0 && !nursery.closed.load(Ordering::Acquire) {
            if nursery.len() >= nursery.size {
                nursery.taken.notified().await;
                continue;
            }
            // Creates go first.
            shared.busy.calm().await;
            let Ok(mut embryo) = Embryo::in_advance(&shared).await else {
                // No room for more now: creates will say so themselves.
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

    /// No more are made.
    pub(crate) fn shut(&self) {
        self.closed.store(true, Ordering::Release);
        self.taken.notify_one();
    }

    /// Ends all of them.
    pub(crate) async fn close(shared: &Arc<Shared>) {
        while let Some(embryo) = shared.nursery.take() {
            embryo.give_back(shared).await;
        }
    }
}
