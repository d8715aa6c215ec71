//! CPU weights of sandboxes.
//!
//! All sandboxes have the same `cpu.weight`. While more threads are runnable than there are processors, sandboxes that use
//! an equal share or more get a tenth of it, so that a short command elsewhere does not take twice its time. A demoted
//! sandbox still gets everything that the others leave. It gets the usual weight back when it uses less or when there is no
//! contention.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use atoll_jail::cgroup::Weight;
use atoll_model::SandboxId;

use crate::runtime::{Place, Shared};
use crate::sandbox::Sandbox;

/// Shortest time between two checks.
const INTERVAL: Duration = Duration::from_millis(200);
/// A check of many sandboxes takes at most this fraction of the time: the next one waits so many times its duration.
const BACKOFF_FACTOR: u32 = 50;
/// Sandboxes that use fewer processors than this do not count when the equal share is computed.
const MIN_ACTIVE: f64 = 0.02;
/// Part of all processors that sandboxes must use together before anything is measured one by one.
const MIN_TOTAL: f64 = 0.25;
/// A sandbox is heavy if it uses this part of an equal share …
const HEAVY_RATIO: f64 = 0.8;
/// … and this part of what the heaviest one uses, so that equals are demoted together.
const PEER_RATIO: f64 = 0.7;

/// Adjusts the weights for as long as the runtime exists.
pub(crate) async fn run(shared: Weak<Shared>) {
    let mut controller = WeightController::default();
    // Sandboxes adopted from an earlier server may be demoted: the first check resets all that are not heavy.
    if let Some(shared) = shared.upgrade() {
        controller.demoted = downgrade(&live(&shared));
    }
    let mut wait = INTERVAL;
    loop {
        tokio::time::sleep(wait).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let checked = tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            controller.rebalance(&shared);
            (controller, begin.elapsed())
        });
        let Ok((after, took)) = checked.await else {
            return;
        };
        (controller, wait) = (after, INTERVAL.max(took * BACKOFF_FACTOR));
    }
}

type Demoted<T> = HashMap<SandboxId, Weak<T>>;

#[derive(Default)]
struct WeightController {
    /// Processor time of all sandboxes together at the last check.
    total: Option<(Instant, Duration)>,
    /// Processor time of each sandbox; `None` without contention.
    each: Option<(Instant, HashMap<SandboxId, Duration>)>,
    /// A sandbox that was stopped and started since has a new cgroup with the usual weight, hence the pointer.
    demoted: Demoted<Sandbox>,
}

impl WeightController {
    fn rebalance(&mut self, shared: &Shared) {
        let processors = shared.facts.processors.len();
        let (now, total) = (Instant::now(), shared.instance.cgroups.processor_time());
        let busy = self
            .total
            .replace((now, total))
            .is_some_and(|(then, before)| {
                processors_used(before, total, then) >= MIN_TOTAL * processors as f64
            });
        let contended = busy && runnable_threads() > processors;
        if !contended && self.demoted.is_empty() {
            self.each = None;
            return;
        }
        let all = live(shared);
        let demoted = still_demoted(&self.demoted, &all);
        let wanted = if contended {
            let used = all.iter();
            let used = used.map(|(id, sandbox)| (id.clone(), sandbox.group.processor_time()));
            let used: HashMap<SandboxId, Duration> = used.collect();
            let Some((then, before)) = self.each.replace((now, used.clone())) else {
                return;
            };
            let usage = used.into_iter().filter_map(|(id, used)| {
                let usage = processors_used(*before.get(&id)?, used, then);
                Some((id, usage))
            });
            select_demoted(&usage.collect(), &demoted)
        } else {
            self.each = None;
            HashSet::new()
        };
        for (ids, weight) in [
            (wanted.difference(&demoted), Weight::Light),
            (demoted.difference(&wanted), Weight::Usual),
        ] {
            for sandbox in ids.filter_map(|id| all.get(id)) {
                sandbox.group.weigh(weight);
            }
        }
        self.demoted = downgrade(&all);
        self.demoted.retain(|id, _| wanted.contains(id));
    }
}

fn live(shared: &Shared) -> HashMap<SandboxId, Arc<Sandbox>> {
    let all = shared.entries().into_iter();
    let live = all.filter_map(|(id, entry)| match entry.place() {
        Place::Live(sandbox) => Some((id, sandbox)),
        _ => None,
    });
    live.collect()
}

fn downgrade<T>(all: &HashMap<SandboxId, Arc<T>>) -> Demoted<T> {
    let all = all.iter();
    all.map(|(id, one)| (id.clone(), Arc::downgrade(one)))
        .collect()
}

fn still_demoted<T>(demoted: &Demoted<T>, all: &HashMap<SandboxId, Arc<T>>) -> HashSet<SandboxId> {
    let same = |id: &SandboxId, then: &Weak<T>| all.get(id).map(Arc::as_ptr) == Some(then.as_ptr());
    let still = demoted.iter().filter(|(id, then)| same(id, then));
    still.map(|(id, _)| id.clone()).collect()
}

fn processors_used(before: Duration, after: Duration, since: Instant) -> f64 {
    after.saturating_sub(before).as_secs_f64() / since.elapsed().as_secs_f64().max(1e-3)
}

/// Threads of the machine that run or could.
fn runnable_threads() -> usize {
    parse_runnable(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default())
}

/// The fourth field of `0.20 0.18 0.12 1/80 11206`, before the slash.
fn parse_runnable(loadavg: &str) -> usize {
    let field = loadavg.split(' ').nth(3);
    let count = field.and_then(|field| field.split_once('/')?.0.parse().ok());
    count.unwrap_or(0)
}

/// Chooses the sandboxes with a low weight, by how many processors each has used. A demoted sandbox is not promoted while
/// another one becomes heavy in its place: the two would change places at every check.
fn select_demoted(
    usage: &HashMap<SandboxId, f64>,
    demoted: &HashSet<SandboxId>,
) -> HashSet<SandboxId> {
    let active = usage.values().filter(|used| **used >= MIN_ACTIVE).count();
    let equal = usage.values().sum::<f64>() / active.max(1) as f64;
    let most = usage.values().copied().fold(0.0, f64::max);
    let threshold = (HEAVY_RATIO * equal).max(PEER_RATIO * most).max(MIN_ACTIVE);
    let heavy = usage.iter().filter(|(_, used)| **used >= threshold);
    let heavy: HashSet<SandboxId> = heavy.map(|(id, _)| id.clone()).collect();
    if heavy.is_subset(demoted) {
        return heavy;
    }
    let stay = demoted.iter().filter(|id| usage.contains_key(*id)).cloned();
    stay.chain(heavy.iter().cloned()).collect()
}

#[cfg(test)]
mod tests;
