//! Warm sandboxes: complete ones of the templates people ask for, made while nobody waits. A create takes
//! one whatever size, network and environment it asks for: those are given at the claim. What is mounted in
//! one, and how, is not. None is ever used twice.

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

/// How many templates besides `base` have warm ones.
const OTHERS: usize = 4;

/// The warm sandboxes of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// How many there should be.
    size: usize,
    ready: Mutex<VecDeque<Arc<Sandbox>>>,
    /// Templates besides `base`, those that were asked for last first.
    recent: Mutex<Vec<String>>,
    /// One was taken, or others are wanted.
    changed: Notify,
    closed: AtomicBool,
    /// Held while one is made or ended.
    tending: tokio::sync::Mutex<()>,
}

/// What the pool lacks.
enum Step {
    /// One that nobody will want.
    End(Arc<Sandbox>),
    /// One of this template.
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

    /// One that can become this, if there is one.
    pub(crate) fn take(&self, spec: &SandboxSpec) -> Option<Arc<Sandbox>> {
        // The root of a warm one is mounted already, and is volatile.
        if !spec.mounts.is_empty() || spec.durable {
            return None;
        }
        let taken = self.take_one(|warm| warm.is_made_from(&spec.template))?;
        self.changed.notify_one();
        Some(taken)
    }

    /// Somebody got a sandbox of this template, and may want another.
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

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        lock(&self.ready).len()
    }

    /// It is one of these.
    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        lock(&self.ready).iter().any(|warm| warm.info().id == *id)
    }

    /// Takes one in that is complete, or gives it back because it is too late for that.
    pub(crate) fn add(&self, sandbox: Arc<Sandbox>) -> Result<(), Arc<Sandbox>> {
        let mut ready = lock(&self.ready);
        if self.closed.load(Ordering::Acquire) {
            return Err(sandbox);
        }
        ready.push_back(sandbox);
        Ok(())
    }

    /// What is to be done next. One that is to end is nobody's any more.
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

    /// Makes sandboxes until there are enough, and again whenever one was taken.
    pub(crate) async fn tend(shared: Arc<Shared>) {
        let pool = &shared.pool;
        while pool.size > 0 && !pool.closed.load(Ordering::Acquire) {
            // Creates go first.
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

    /// Makes one; false if nothing more can be made for now.
    async fn make(&self, shared: &Arc<Shared>, template: String) -> bool {
        let spec = SandboxSpec {
            template: template.clone(),
            ..SandboxSpec::default()
        };
        match Sandbox::create(shared, spec, true, crate::runtime::nobody()).await {
            Ok(made) => {
                if let Err(late) = self.add(made) {
                    late.undo(shared).await;
                }
                true
            }
            // No template or no room now: creates will say so themselves.
            Err(_) if template == BASE => false,
            Err(_) => {
                lock(&self.recent).retain(|known| *known != template);
                true
            }
        }
    }

    /// Ends those of a template; none is made as long as what this returns is kept.
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

    /// No more are made.
    pub(crate) fn shut(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Ends all of them.
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

/// How many of each template there should be: half for those that were asked for lately, the rest of `base`,
/// which comes last because there may be none.
fn shares(size: usize, recent: &[String]) -> Vec<(&str, usize)> {
    let others = &recent[..recent.len().min(size / 2)];
    let each = (size / 2).checked_div(others.len()).unwrap_or(0);
    let base = (BASE, size - each * others.len());
    let others = others.iter().map(|template| (template.as_str(), each));
    others.chain([base]).collect()
}
