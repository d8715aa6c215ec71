//! Who steps back where processor time is short.
//!
//! All sandboxes weigh the same. Beside one that uses every processor another would have half of one, and a command take twice its
//! time. So while more wants to run than there are processors, sandboxes that use as much as an equal part weigh a tenth: they
//! still have all that others leave. They weigh the same again when they use less, or when there is enough.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use atoll_jail::cgroup::Weight;
use atoll_model::SandboxId;

use crate::metronome;
use crate::runtime::{Place, Shared};
use crate::sandbox::Sandbox;

/// How often it is looked whether processor time is short.
const GLANCE: Duration = Duration::from_millis(200);
/// So many times as long as it took to look at all sandboxes they are left alone.
const REST: u32 = 50;
/// Who uses less than this part of a processor is no candidate for an equal part.
const ACTIVE: f64 = 0.02;
/// Which part of all processors they must use together.
const SOME: f64 = 0.25;
/// Which part of an equal one is much.
const MUCH: f64 = 0.8;
/// Which part of what the heaviest uses is as much as that: equals step back together, and nobody else with them.
const EQUAL: f64 = 0.7;

/// Weighs sandboxes as long as their runtime lives.
pub(crate) async fn tend(shared: Weak<Shared>) {
    let mut scales = Scales::default();
    // Those of an earlier server may have stepped back: all are told once.
    if let Some(shared) = shared.upgrade() {
        scales.light = weak(&live(&shared));
    }
    let mut wait = GLANCE;
    loop {
        tokio::time::sleep(wait).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let weighed = tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            scales.weigh(&shared);
            (scales, begin.elapsed())
        });
        let Ok((after, took)) = weighed.await else {
            return;
        };
        (scales, wait) = (after, GLANCE.max(took * REST));
    }
}

/// What was seen last.
#[derive(Default)]
struct Scales {
    /// What all had used together, and when that was.
    total: Option<(Instant, Duration)>,
    /// The same of each, while it is looked at.
    each: Option<(Instant, HashMap<SandboxId, Duration>)>,
    /// Who has stepped back, with the processes it had then.
    light: Light<Sandbox>,
}

type Light<T> = HashMap<SandboxId, Weak<T>>;

impl Scales {
    fn weigh(&mut self, shared: &Shared) {
        let processors = shared.facts.processors.len() as f64;
        let (now, total) = (Instant::now(), shared.instance.cgroups.processor_time());
        let before = self.total.replace((now, total));
        let some =
            before.is_some_and(|(then, before)| part(before, total, then) >= SOME * processors);
        let full = some && metronome::threads_that_run() > shared.facts.processors.len();
        let all = if full || !self.light.is_empty() {
            live(shared)
        } else {
            HashMap::new()
        };
        let light = still(&self.light, &all);
        let wanted = if full {
            let used = all
                .iter()
                .map(|(id, sandbox)| (id.clone(), sandbox.group.processor_time()));
            let used: HashMap<SandboxId, Duration> = used.collect();
            let Some((then, before)) = self.each.replace((now, used.clone())) else {
                return;
            };
            let usage = used.into_iter().filter_map(|(id, used)| {
                let part = part(*before.get(&id)?, used, then);
                Some((id, part))
            });
            step_back(&usage.collect(), &light)
        } else {
            self.each = None;
            HashSet::new()
        };
        for (ids, weight) in [
            (wanted.difference(&light), Weight::Light),
            (light.difference(&wanted), Weight::Usual),
        ] {
            for sandbox in ids.filter_map(|id| all.get(id)) {
                sandbox.group.weigh(weight);
            }
        }
        self.light = weak(&all);
        self.light.retain(|id, _| wanted.contains(id));
    }
}

fn weak<T>(all: &HashMap<SandboxId, Arc<T>>) -> Light<T> {
    let all = all.iter();
    all.map(|(id, one)| (id.clone(), Arc::downgrade(one)))
        .collect()
}

/// Who weighs little still: one that was started again meanwhile weighs the same as all.
fn still<T>(light: &Light<T>, all: &HashMap<SandboxId, Arc<T>>) -> HashSet<SandboxId> {
    let same = |id: &SandboxId, then: &Weak<T>| {
        let now = all.get(id).map(Arc::as_ptr);
        now == Some(then.as_ptr())
    };
    let still = light.iter().filter(|(id, then)| same(id, then));
    still.map(|(id, _)| id.clone()).collect()
}

/// How many processors' time was used.
fn part(before: Duration, after: Duration, since: Instant) -> f64 {
    after.saturating_sub(before).as_secs_f64() / since.elapsed().as_secs_f64().max(1e-3)
}

fn live(shared: &Shared) -> HashMap<SandboxId, Arc<Sandbox>> {
    let all = shared.entries().into_iter();
    let live = all.filter_map(|(id, entry)| match entry.place() {
        Place::Live(sandbox) => Some((id, sandbox)),
        _ => None,
    });
    live.collect()
}

/// Who steps back, by how many processors each has used. One that has is not let forward while another comes to use much in its stead.
fn step_back(usage: &HashMap<SandboxId, f64>, light: &HashSet<SandboxId>) -> HashSet<SandboxId> {
    let active = usage.values().filter(|used| **used >= ACTIVE).count();
    let equal = usage.values().sum::<f64>() / active.max(1) as f64;
    let most = usage.values().copied().fold(0.0, f64::max);
    let much = (MUCH * equal).max(EQUAL * most).max(ACTIVE);
    let heavy = usage.iter().filter(|(_, used)| **used >= much);
    let heavy: HashSet<SandboxId> = heavy.map(|(id, _)| id.clone()).collect();
    if heavy.is_subset(light) {
        return heavy;
    }
    let stay = light.iter().filter(|id| usage.contains_key(*id)).cloned();
    stay.chain(heavy.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Three([SandboxId; 3]);

    impl Three {
        fn new() -> Self {
            Self([(); 3].map(|()| SandboxId::random()))
        }

        /// Who of them steps back.
        fn after(&self, used: [f64; 3], light: &[usize]) -> Vec<usize> {
            let usage = self.0.iter().cloned().zip(used).collect();
            let light = light.iter().map(|&one| self.0[one].clone()).collect();
            let back = step_back(&usage, &light);
            let back = |one: &usize| back.contains(&self.0[*one]);
            (0..3).filter(back).collect()
        }
    }

    #[test]
    fn who_was_started_again_has_not_stepped_back() {
        let ids = Three::new().0;
        let mut all: HashMap<SandboxId, Arc<()>> =
            ids.iter().cloned().map(|id| (id, Arc::default())).collect();
        let light = weak(&all);
        all.insert(ids[0].clone(), Arc::default());
        all.remove(&ids[1]);
        assert_eq!(still(&light, &all), HashSet::from([ids[2].clone()]));
    }

    #[test]
    fn who_uses_an_equal_part_or_more_steps_back() {
        let three = Three::new();
        assert_eq!(three.after([1.4, 0.5, 0.0], &[]), [0]);
        assert_eq!(three.after([1.2, 0.81, 0.0], &[]), [0]);
        assert_eq!(three.after([0.8, 0.8, 0.3], &[]), [0, 1]);
        assert_eq!(three.after([1.0, 1.0, 0.0], &[]), [0, 1]);
        assert_eq!(three.after([2.0, 0.0, 0.0], &[]), [0]);
        assert!(three.after([0.0, 0.0, 0.0], &[]).is_empty());
    }

    #[test]
    fn who_has_stepped_back_comes_forward_when_it_uses_little_and_not_in_turn_with_another() {
        let three = Three::new();
        // Another takes what it leaves: both are the same from then on.
        assert_eq!(three.after([0.2, 1.8, 0.0], &[0]), [0, 1]);
        assert_eq!(three.after([1.0, 1.0, 0.0], &[0, 1]), [0, 1]);
        // It has ended what it did.
        assert_eq!(three.after([0.1, 1.8, 0.0], &[0, 1]), [1]);
        // Small ones that leave it too little are no longer small.
        assert_eq!(three.after([0.1, 0.6, 0.6], &[0]), [0, 1, 2]);
    }
}
