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

use crate::runtime::RuntimeState;
use crate::sandbox::Sandbox;
use crate::sync::lock;
use crate::template::BASE;

/// Number of templates besides `base` that have warm sandboxes.
const MAX_OTHER_TEMPLATES: usize = 4;

/// The warm sandboxes of a runtime.
#[derive(Debug, Default)]
pub(crate) struct WarmPool {
    /// Target number of warm sandboxes, of all templates together.
    size: usize,
    ready: Mutex<VecDeque<Arc<Sandbox>>>,
    /// Templates besides `base`, most recently used first.
    recent: Mutex<Vec<String>>,
    /// Notified when a warm sandbox was taken or the targets changed.
    changed: Notify,
    closed: AtomicBool,
    /// Held while a warm sandbox is created or discarded by the pool.
    maintenance: tokio::sync::Mutex<()>,
}

/// The next step towards the targets.
enum PoolAction {
    /// A sandbox above the target of its template, already removed from the pool.
    Discard(Arc<Sandbox>),
    /// Create one of this template.
    Create(String),
    Idle,
}

impl WarmPool {
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
        let warm = self.take_one(|warm| warm.is_from_template(&spec.template))?;
        self.changed.notify_one();
        Some(warm)
    }

    /// A sandbox of this template was created; more are likely.
    pub(crate) fn record_demand(&self, template: &str) {
        if template == BASE {
            return;
        }
        let mut recent = lock(&self.recent);
        if recent.first().is_some_and(|first| first == template) {
            return;
        }
        recent.retain(|known| known != template);
        recent.insert(0, template.to_owned());
        recent.truncate(MAX_OTHER_TEMPLATES);
        self.changed.notify_one();
    }

    /// Number of warm sandboxes.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    pub(crate) fn contains(&self, id: &SandboxId) -> bool {
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
    fn next_action(&self) -> PoolAction {
        let recent = lock(&self.recent).clone();
        let mut missing = targets(self.size, &recent);
        let mut ready = lock(&self.ready);
        let surplus = ready.iter().position(|warm| {
            let has_template = |(template, count): &&mut (&str, usize)| {
                *count > 0 && warm.is_from_template(template)
            };
            match missing.iter_mut().find(has_template) {
                Some((_, count)) => {
                    *count -= 1;
                    false
                }
                None => true,
            }
        });
        if let Some(warm) = surplus.and_then(|index| ready.remove(index)) {
            return PoolAction::Discard(warm);
        }
        let missing = missing.iter().find(|(_, count)| *count > 0);
        missing.map_or(PoolAction::Idle, |(template, _)| {
            PoolAction::Create((*template).into())
        })
    }

    /// Keeps the pool at its targets until [`WarmPool::stop_refill`].
    pub(crate) async fn run(shared: Arc<RuntimeState>) {
        let pool = &shared.warm_pool;
        while pool.size > 0 && !pool.closed.load(Ordering::Acquire) {
            // Creates have priority.
            shared.foreground.wait_quiescent().await;
            let maintenance = pool.maintenance.lock().await;
            let is_idle = match pool.next_action() {
                PoolAction::Idle => true,
                PoolAction::Discard(warm) => {
                    warm.discard(&shared).await;
                    false
                }
                PoolAction::Create(template) => !pool.create_one(&shared, template).await,
            };
            drop(maintenance);
            if is_idle {
                pool.changed.notified().await;
            }
        }
    }

    /// Creates one warm sandbox. False if there is no capacity now.
    async fn create_one(&self, shared: &Arc<RuntimeState>, template: String) -> bool {
        let spec = SandboxSpec {
            template: template.clone(),
            ..SandboxSpec::default()
        };
        match Sandbox::create(shared, spec, true, crate::runtime::no_hook()).await {
            Ok(sandbox) => {
                if let Err(rejected) = self.add(sandbox) {
                    rejected.discard(shared).await;
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
    pub(crate) async fn evict_template<'a>(
        shared: &'a Arc<RuntimeState>,
        template: &str,
    ) -> MutexGuard<'a, ()> {
        let pool = &shared.warm_pool;
        lock(&pool.recent).retain(|known| known != template);
        let maintenance = pool.maintenance.lock().await;
        while let Some(warm) = pool.take_one(|warm| warm.is_from_template(template)) {
            warm.discard(shared).await;
        }
        maintenance
    }

    fn take_one(&self, fits: impl Fn(&Arc<Sandbox>) -> bool) -> Option<Arc<Sandbox>> {
        let mut ready = lock(&self.ready);
        let index = ready.iter().position(fits)?;
        ready.remove(index)
    }

    /// Creates no more warm sandboxes.
    pub(crate) fn stop_refill(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Ends all warm sandboxes.
    pub(crate) async fn drain(shared: &Arc<RuntimeState>) {
        loop {
            let next = lock(&shared.warm_pool.ready).pop_front();
            match next {
                Some(warm) => warm.discard(shared).await,
                None => return,
            }
        }
    }
}

/// Target number of each template: half of the pool for recently used templates, the rest for
/// `base`. `base` comes last because it may not exist.
fn targets(size: usize, recent: &[String]) -> Vec<(&str, usize)> {
    let others = &recent[..recent.len().min(size / 2)];
    let each = (size / 2).checked_div(others.len()).unwrap_or(0);
    let base = (BASE, size - each * others.len());
    let others = others.iter().map(|template| (template.as_str(), each));
    others.chain([base]).collect()
}
