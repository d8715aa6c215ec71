//! Pool of embryos: PID 1 processes in their namespaces and limits that have no spec yet.
//!
//! They are prepared one by one while no request is in flight. A create that takes one saves the
//! `clone` call and the RCU grace period that attaching to v1 control groups takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::runtime::RuntimeState;
use crate::sandbox::Embryo;
use crate::sync::lock;

/// The embryos of a runtime.
#[derive(Debug, Default)]
pub(crate) struct EmbryoPool {
    /// Target number of embryos.
    size: usize,
    ready: Mutex<VecDeque<Embryo>>,
    /// Notified when an embryo was taken or refilling was stopped.
    changed: Notify,
    closed: AtomicBool,
}

impl EmbryoPool {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    /// Takes an embryo whose process is alive.
    pub(crate) fn take(&self) -> Option<Embryo> {
        let mut ready = lock(&self.ready);
        let embryo = std::iter::from_fn(|| ready.pop_front()).find(Embryo::is_alive);
        // Also if there was none: capacity may be available again.
        self.changed.notify_one();
        embryo
    }

    /// Number of embryos.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    /// Keeps the pool at its size until [`EmbryoPool::stop_refill`].
    pub(crate) async fn run(shared: Arc<RuntimeState>) {
        let pool = &shared.embryo_pool;
        while pool.size > 0 && !pool.closed.load(Ordering::Acquire) {
            if pool.len() >= pool.size {
                pool.changed.notified().await;
                continue;
            }
            // Creates have priority.
            shared.foreground.wait_quiescent().await;
            let Ok(mut embryo) = Embryo::prepare(&shared).await else {
                // No capacity now; a create returns the error itself.
                pool.changed.notified().await;
                continue;
            };
            if embryo.wait_attached().await.is_ok() && !pool.closed.load(Ordering::Acquire) {
                lock(&pool.ready).push_back(embryo);
            } else {
                embryo.discard(&shared).await;
            }
        }
    }

    /// Prepares no more embryos.
    pub(crate) fn stop_refill(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Ends all embryos.
    pub(crate) async fn drain(shared: &Arc<RuntimeState>) {
        while let Some(embryo) = shared.embryo_pool.take() {
            embryo.discard(shared).await;
        }
    }
}
