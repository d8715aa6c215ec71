//! Warm sandboxes: complete ones of the template most people ask for, made while nobody waits. A create
//! that asks for nothing they cannot still be given takes one. None is ever used twice.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use atoll_model::{Limits, Network, SandboxId, SandboxSpec};
use tokio::sync::Notify;

use crate::runtime::Shared;
use crate::sandbox::{Sandbox, lock};

/// The warm sandboxes of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// How many there should be.
    size: usize,
    ready: Mutex<VecDeque<Arc<Sandbox>>>,
    /// One was taken.
    taken: Notify,
    closed: AtomicBool,
}

impl Pool {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    /// One that can become this, if there is one: its environment is set at the claim; its size, its
    /// network and what is mounted in it are not.
    pub(crate) fn take(&self, spec: &SandboxSpec) -> Option<Arc<Sandbox>> {
        let ordinary = spec.limits == Limits::default()
            && spec.mounts.is_empty()
            && spec.network == Network::None;
        if !ordinary {
            return None;
        }
        let mut ready = lock(&self.ready);
        while let Some(index) = ready
            .iter()
            .position(|warm| warm.is_made_from(&spec.template))
        {
            let warm = ready.remove(index)?;
            self.taken.notify_one();
            if warm.died.borrow().is_none() {
                return Some(warm);
            }
        }
        None
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    /// It is one of these.
    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        lock(&self.ready).iter().any(|warm| warm.info().id == *id)
    }

    /// Takes one in that is complete, or one that was not claimed after all.
    pub(crate) fn add(&self, sandbox: Arc<Sandbox>) {
        lock(&self.ready).push_back(sandbox);
    }

    /// Makes sandboxes until there are enough, and again whenever one was taken.
    pub(crate) async fn tend(shared: Arc<Shared>) {
        let pool = &shared.pool;
        while pool.size > 0 && !pool.closed.load(Ordering::Acquire) {
            if pool.len() >= pool.size {
                pool.taken.notified().await;
                continue;
            }
            // Creates go first.
            shared.busy.calm().await;
            match Sandbox::create(
                &shared,
                SandboxSpec::default(),
                true,
                crate::runtime::nobody(),
            )
            .await
            {
                Ok(made) if !pool.closed.load(Ordering::Acquire) => pool.add(made),
                Ok(made) => Self::end(&shared, &made).await,
                // No template or no room now: creates will say so themselves.
                Err(_) => pool.taken.notified().await,
            }
        }
    }

    /// Ends all of them.
    pub(crate) async fn close(shared: &Arc<Shared>) {
        shared.pool.closed.store(true, Ordering::Release);
        shared.pool.taken.notify_one();
        loop {
            let next = lock(&shared.pool.ready).pop_front();
            match next {
                Some(warm) => Self::end(shared, &warm).await,
                None => return,
            }
        }
    }

    async fn end(shared: &Arc<Shared>, warm: &Arc<Sandbox>) {
        warm.undo(shared).await;
    }
}
