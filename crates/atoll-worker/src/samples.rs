//! Usage samples of sandboxes: taken every five seconds, kept in memory for an hour.
//!
//! One task samples all sandboxes. Sampling does not count as activity, and a new server starts
//! without samples.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use atoll_jail::cgroup::SandboxCgroup;
use atoll_model::{Bytes, Error, Limits, Sample, SandboxId, SandboxState, Timer};

use crate::LocalRuntime;
use crate::exec::now;
use crate::runtime::{EntryState, RuntimeState, SandboxEntry, not_found};
use crate::sync::lock;

/// Interval between two samples of a sandbox.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Samples of one hour.
const MAX_SAMPLES: usize = 720;
/// How long a sample is kept, in microseconds.
const RETENTION_MICROS: i64 = 3_600_000_000;
/// Shortest interval for a CPU percentage, in microseconds.
const MIN_CPU_INTERVAL_MICROS: i64 = 1_000_000;
/// Time per pass for measuring files. Sandboxes that were left out come first in the next pass.
const DISK_TIME_PER_PASS: Duration = Duration::from_millis(50);
/// A sandbox's files are measured again after this many times the duration of the last measurement.
const DISK_RESCAN_FACTOR: u32 = 100;

/// A compact sample: 23 KiB per sandbox and hour. Sizes are in pages.
#[derive(Debug, Clone, Copy)]
struct StoredSample {
    at: i64,
    /// CPU time since the start, in microseconds.
    cpu: u64,
    memory: u32,
    cache: u32,
    disk: Option<NonZeroU32>,
    pids: u32,
}

const PAGE_BYTES: u64 = 4096;

fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
}

fn bytes(pages: u32) -> Bytes {
    Bytes(u64::from(pages) * PAGE_BYTES)
}

/// The samples of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    stored: VecDeque<StoredSample>,
    /// Limits, each with the time from which it applied.
    limits: VecDeque<(i64, Limits)>,
    /// Disk usage in pages, and when to measure it again.
    disk: Option<(NonZeroU32, Instant)>,
}

impl Samples {
    fn add(&mut self, sample: StoredSample, limits: Limits) {
        if self.limits.back().is_none_or(|(_, last)| *last != limits) {
            self.limits.push_back((sample.at, limits));
        }
        if self.stored.len() == MAX_SAMPLES {
            self.stored.pop_front();
        }
        if self.stored.len() == self.stored.capacity() {
            self.stored.reserve_exact(MAX_SAMPLES / 12);
        }
        self.stored.push_back(sample);
        self.remove_old(sample.at);
    }

    /// Removes samples that are older than an hour.
    fn remove_old(&mut self, now: i64) {
        while self
            .stored
            .front()
            .is_some_and(|old| old.at < now - RETENTION_MICROS)
        {
            self.stored.pop_front();
        }
        let first = self.stored.front().map_or(now, |first| first.at);
        while self.limits.get(1).is_some_and(|(from, _)| *from <= first) {
            self.limits.pop_front();
        }
    }

    /// Samples in a range, oldest first, followed by `fresh` if that is in range.
    fn range(&mut self, from: i64, to: i64, fresh: Option<(StoredSample, Limits)>) -> Vec<Sample> {
        self.remove_old(now());
        let mut before = None;
        let mut limits = self.limits.iter().peekable();
        let mut current_limits = limits.peek().map_or(Limits::default(), |(_, first)| *first);
        let mut all = Vec::new();
        for stored in &self.stored {
            while let Some((_, next)) = limits.next_if(|(from, _)| *from <= stored.at) {
                current_limits = *next;
            }
            if (from..=to).contains(&stored.at) {
                all.push(stored.sample(before, current_limits));
            }
            before = Some(stored);
        }
        if let Some((stored, limits)) = fresh.filter(|(stored, _)| (from..=to).contains(&stored.at))
        {
            // A short interval makes the percentage inaccurate.
            let is_long_enough =
                |old: &&StoredSample| stored.at - old.at >= MIN_CPU_INTERVAL_MICROS;
            let before = self.stored.iter().rev().find(is_long_enough).or(before);
            all.push(stored.sample(before, limits));
        }
        all
    }
}

impl StoredSample {
    fn sample(&self, before: Option<&Self>, limits: Limits) -> Sample {
        Sample {
            at: self.at,
            cpu: Duration::from_micros(self.cpu),
            cpu_percent: before.map_or(0.0, |before| self.percent(before, limits)),
            memory: bytes(self.memory),
            cache: bytes(self.cache),
            disk: self.disk.map(|pages| bytes(pages.get())),
            pids: self.pids,
            limits,
        }
    }

    /// CPU usage since an earlier sample in percent of the limit; 0 if the counter was reset.
    fn percent(&self, before: &Self, limits: Limits) -> f64 {
        let time = (self.at - before.at) as f64 / 1e6;
        let cpus = f64::from(limits.cpus.0) / 1000.0;
        if time <= 0.0 || cpus <= 0.0 {
            return 0.0;
        }
        let used = self.cpu.saturating_sub(before.cpu) as f64 / 1e6;
        (used / time / cpus * 10_000.0).round() / 100.0
    }

    /// Reads the current usage.
    fn read(group: &SandboxCgroup, disk: Option<NonZeroU32>) -> Self {
        let usage = group.usage();
        let cache = group.cache().min(usage.memory);
        Self {
            at: now(),
            cpu: usage.cpu.as_micros() as u64,
            memory: pages(usage.memory - cache),
            cache: pages(cache),
            disk,
            pids: usage.pids as u32,
        }
    }
}

impl SandboxEntry {
    /// Current usage with the limits; `None` unless the sandbox runs.
    fn read_now(&self) -> Option<(StoredSample, Limits)> {
        let EntryState::Live(sandbox) = self.state() else {
            return None;
        };
        let runs = sandbox.exit_status.borrow().is_none()
            && *sandbox.state.borrow() == SandboxState::Running;
        runs.then(|| {
            let disk = lock(&self.samples).disk.map(|(used, _)| used);
            let stored = StoredSample::read(&sandbox.group, disk);
            (stored, sandbox.info().limits)
        })
    }
}

/// Samples all running sandboxes every [`SAMPLE_INTERVAL`] until the runtime is dropped.
pub(crate) async fn run(shared: Weak<RuntimeState>) {
    let mut clock = tokio::time::interval(SAMPLE_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let _ = tokio::task::spawn_blocking(move || sample_all(&shared)).await;
    }
}

fn sample_all(shared: &Arc<RuntimeState>) {
    let entries = shared.entries();
    measure_files(shared, &entries);
    let _time = Timer::start(shared.metrics.sampling.clone());
    for (_, entry) in entries {
        if let Some((stored, limits)) = entry.read_now() {
            lock(&entry.samples).add(stored, limits);
        }
    }
}

/// Measures disk usage, least recently measured sandboxes first.
fn measure_files(shared: &RuntimeState, entries: &[(SandboxId, Arc<SandboxEntry>)]) {
    let begin = Instant::now();
    let mut due: Vec<_> = entries
        .iter()
        .filter(|(_, entry)| matches!(entry.state(), EntryState::Live(_)))
        .map(|(id, entry)| (lock(&entry.samples).disk.map(|(_, due)| due), id, entry))
        .filter(|(due, ..)| due.is_none_or(|due| due <= begin))
        .collect();
    due.sort_by_key(|(due, ..)| *due);
    for (_, id, entry) in due {
        if begin.elapsed() > DISK_TIME_PER_PASS {
            return;
        }
        let start = Instant::now();
        let used = shared.instance.storage.usage(id, Bytes(0));
        let next = Instant::now() + start.elapsed() * DISK_RESCAN_FACTOR;
        if let Ok(usage) = used {
            // A directory takes at least one page.
            let used = NonZeroU32::new(pages(usage.used.0)).unwrap_or(NonZeroU32::MIN);
            lock(&entry.samples).disk = Some((used, next));
        }
    }
}

impl LocalRuntime {
    /// Usage of a sandbox between two times, in microseconds since 1970, oldest first: one sample
    /// per five seconds in which it ran, for the last hour and since this server started. The last
    /// sample of a running sandbox is taken now.
    pub fn samples(&self, id: &SandboxId, from: i64, to: i64) -> Result<Vec<Sample>, Error> {
        let entry = self.entry(id)?;
        if matches!(entry.state(), EntryState::Gone) {
            return Err(not_found(id));
        }
        let fresh = entry.read_now();
        Ok(lock(&entry.samples).range(from, to, fresh))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: i64, cpu: u64) -> StoredSample {
        StoredSample {
            at,
            cpu: cpu * 1_000_000,
            memory: 1,
            cache: 2,
            disk: None,
            pids: 1,
        }
    }

    #[test]
    fn samples_of_an_hour_are_kept_with_their_limits() {
        let mut samples = Samples::default();
        let (second, now) = (1_000_000, now());
        let begin = now - RETENTION_MICROS;
        let (small, large) = (
            Limits::default(),
            Limits {
                cpus: atoll_model::Cpus(4000),
                ..Limits::default()
            },
        );
        for number in -100..720 {
            let limits = if number < 700 { small } else { large };
            // All of two CPUs.
            let cpu = (number + 100) as u64 * 10;
            samples.add(sample(begin + number * 5 * second, cpu), limits);
        }
        let all = samples.range(0, i64::MAX, None);
        assert!((719..=720).contains(&all.len()), "{}", all.len());
        assert_eq!(samples.stored.len(), all.len());
        assert_eq!(samples.limits.len(), 2);
        assert!((all[10].cpu_percent - 100.0).abs() < 0.1, "{:?}", all[10]);
        assert_eq!(all[10].limits, small);
        let last = all.last().expect("there are many");
        assert_eq!(last.limits, large);
        assert!((last.cpu_percent - 50.0).abs() < 0.1, "{last:?}");
        let some = samples.range(begin + 50 * second, begin + 60 * second, None);
        assert_eq!(some.len(), 3);
        // A fresh sample is returned and not stored; a counter that was reset counts as no usage.
        let fresh = samples.range(now, i64::MAX, Some((sample(now + 1, 0), small)));
        assert_eq!(fresh.len(), 1);
        assert!(fresh[0].cpu_percent.abs() < 0.1);
    }
}
