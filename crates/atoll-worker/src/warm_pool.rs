//! Pool of warm sandboxes: complete sandboxes without an owner, of recently used templates.
//!
//! A create claims one; size, network and environment are applied at the claim. Mounts cannot be
//! changed, so a spec with mounts or a durable root never uses the pool. A warm sandbox is used at
//! most once.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use atoll_model::{SandboxId, SandboxSpec};
use tokio::sync::{MutexGuard, Notify};

use crate::runtime::Shared;
use crate::sandbox::{Sandbox, lock};
use crate::template::BASE;

/// Number of templates besides `base` that have warm sandboxes.
const OTHERS: usize = 4;

/// The warm sandboxes of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Target number of warm sandboxes, of all templates together.
    size: usize,
    ready: Mutex<VecDeque<Arc<Sandbox>>>,
    /// Templates besides `base`, most recently used first.
    recent: Mutex<Vec<String>>,
    /// Notified when a warm sandbox was taken or the targets changed.
    changed: Notify,
    closed: AtomicBool,
    /// Held while a warm sandbox is created or discarded by the pool.
    tending: tokio::sync::Mutex<()>,
}

/// The next step towards the targets.
enum Step {
    /// A sandbox above the target of its template, already removed from the pool.
    End(Arc<Sandbox>),
    /// Create one of this template.
    Make(String),
    Nothing,
}

impl Pool {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    /// Takes a warm sandbox that can be claimed for this spec.
    pub(crate) fn take(&self, spec: &SandboxSpec) -> Option<Arc<Sandbox>> {
        // The root of a warm sandbox is mounted already, and is volatile.
        if !spec.mounts.is_empty() || spec.durable {
            return None;
        }
        let taken = self.take_one(|warm| warm.is_made_from(&spec.template))?;
        self.changed.notify_one();
        Some(taken)
    }

    /// A sandbox of this template was created; more are likely.
    pub(crate) fn asked(&self, template: &str) {
        if template == BASE {
            return;
        }
        let mut recent = lock(&self.recent);
        if recent.first().is_some_and(|first| first == template) {
            return;
        }
        recent.retain(|known| known != template);
        recent.insert(0, template.to_owned());
        recent.truncate(OTHERS);
        self.changed.notify_one();
    }

    /// Number of warm sandboxes.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        lock(&self.ready).iter().any(|warm| warm.info().id == *id)
    }

    /// Adds a complete sandbox. Returns it if the pool is closed already.
    pub(crate) fn add(&self, sandbox: Arc<Sandbox>) -> Result<(), Arc<Sandbox>> {
        let mut ready = lock(&self.ready);
        if self.closed.load(Ordering::Acquire) {
            return Err(sandbox);
        }
        ready.push_back(sandbox);
        Ok(())
    }

    /// Chooses the next step. A sandbox to discard is removed from the pool.
    fn next(&self) -> Step {
        let recent = lock(&self.recent).clone();
        let mut lacking = shares(self.size, &recent);
        let mut ready = lock(&self.ready);
        let unwanted = ready.iter().position(|warm| {
            let of =
                |(template, count): &&mut (&str, usize)| *count > 0 && warm.is_made_from(template);
            match lacking.iter_mut().find(of) {
                Some((_, count)) => {
                    *count -= 1;
                    false
                }
                None => true,
            }
        });
        if let Some(warm) = unwanted.and_then(|index| ready.remove(index)) {
            return Step::End(warm);
        }
        let lacking = lacking.iter().find(|(_, count)| *count > 0);
        lacking.map_or(Step::Nothing, |(template, _)| {
            Step::Make((*template).into())
        })
    }

    /// Keeps the pool at its targets until [`WarmPool::stop_refill`].
    pub(crate) async fn tend(shared: Arc<Shared>) {
        let pool = &shared.pool;
        while pool.size > 0 && !pool.closed.load(Ordering::Acquire) {
            // Creates have priority.
            shared.busy.calm().await;
            let tending = pool.tending.lock().await;
            let rests = match pool.next() {
                Step::Nothing => true,
                Step::End(warm) => {
                    warm.undo(&shared).await;
                    false
                }
                Step::Make(template) => !pool.make(&shared, template).await,
            };
            drop(tending);
            if rests {
                pool.changed.notified().await;
            }
        }
    }

    /// Creates one warm sandbox. False if there is no capacity now.
    async fn make(&self, shared: &Arc<Shared>, template: String) -> bool {
        let spec = SandboxSpec {
            template: template.clone(),
            ..SandboxSpec::default()
        };
        match Sandbox::create(shared, spec, true, crate::runtime::no_hook()).await {
            Ok(made) => {
                if let Err(late) = self.add(made) {
                    late.undo(shared).await;
                }
                true
            }
            // No such template or no capacity; a create returns the error itself.
            Err(_) if template == BASE => false,
            Err(_) => {
                lock(&self.recent).retain(|known| *known != template);
                true
            }
        }
    }

    /// Discards the warm sandboxes of a template. None is created while the returned guard is held.
    pub(crate) async fn dismiss<'a>(shared: &'a Arc<Shared>, template: &str) -> MutexGuard<'a, ()> {
        let pool = &shared.pool;
        lock(&pool.recent).retain(|known| known != template);
        let tending = pool.tending.lock().await;
        while let Some(warm) = pool.take_one(|warm| warm.is_made_from(template)) {
            warm.undo(shared).await;
        }
        tending
    }

    fn take_one(&self, fits: impl Fn(&Arc<Sandbox>) -> bool) -> Option<Arc<Sandbox>> {
        let mut ready = lock(&self.ready);
        let index = ready.iter().position(fits)?;
        ready.remove(index)
    }

    /// Creates no more warm sandboxes.
    pub(crate) fn shut(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Ends all warm sandboxes.
    pub(crate) async fn close(shared: &Arc<Shared>) {
        loop {
            let next = lock(&shared.pool.ready).pop_front();
            match next {
                Some(warm) => warm.undo(shared).await,
                None => return,
            }
        }
    }
}

/// Target number of each template: half of the pool for recently used templates, the rest for
/// `base`. `base` comes last because it may not exist.
fn shares(size: usize, recent: &[String]) -> Vec<(&str, usize)> {
    let others = &recent[..recent.len().min(size / 2)];
    let each = (size / 2).checked_div(others.len()).unwrap_or(0);
    let base = (BASE, size - each * others.len());
    let others = others.iter().map(|template| (template.as_str(), each));
    others.chain([base]).collect()
}
