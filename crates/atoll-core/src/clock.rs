//! Server time: the time by which deadlines are set and kept.
//!
//! The system clock can be set at any moment, and no deadline may move because of that. Server time is therefore the
//! system clock at one moment, the anchor, plus what `CLOCK_BOOTTIME` has counted since then. NTP slews both clocks
//! together, so they part only when the system clock is set. `CLOCK_BOOTTIME` and not `CLOCK_MONOTONIC`, because it
//! also counts while the host is suspended: a deadline is a moment that was shown to a user as a time of day, and a
//! suspend does not postpone it.
//!
//! Only [`Clock::accept`] moves the anchor. All deadlines move with it, so that the remaining time of each stays the
//! same. A small step is accepted immediately, a larger one after [`HOLD`], during which nothing expires.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use atoll_model::runtime::DeadlineClock;
use atoll_model::{Error, lock};
use atoll_store::{ClockRecord, Store};

use crate::error;

#[cfg(test)]
pub(crate) mod tests;

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
/// Largest difference that is ignored: a leap second, or noise from reading two clocks one after the other.
const MAX_IGNORED_STEP: i64 = SECOND;
/// Largest step that is accepted immediately.
const MAX_IMMEDIATE_STEP: i64 = MINUTE;
/// Largest plausible time between the last record and the next boot. A longer one starts a hold.
const MAX_REBOOT_TIME: i64 = 5 * MINUTE;
/// Duration of a hold after a larger step, in which nothing expires.
pub(crate) const HOLD: i64 = 15 * MINUTE;

/// Source of clock readings. Tests replace it.
pub(crate) trait TimeSource: Debug + Send + Sync {
    /// The system clock: microseconds since 1970.
    fn system(&self) -> i64;
    /// Microseconds since boot, including time spent suspended.
    fn boottime(&self) -> i64;
    /// Boot id of the host.
    fn boot(&self) -> String;
}

/// The clocks of this host.
#[derive(Debug)]
pub(crate) struct Host;

impl TimeSource for Host {
    fn system(&self) -> i64 {
        microseconds(rustix::time::ClockId::Realtime)
    }

    fn boottime(&self) -> i64 {
        microseconds(rustix::time::ClockId::Boottime)
    }

    fn boot(&self) -> String {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    }
}

fn microseconds(clock: rustix::time::ClockId) -> i64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec * SECOND + time.tv_nsec / 1000
}

/// Server time, and whether deadlines are held.
#[derive(Debug)]
pub struct Clock {
    source: Box<dyn TimeSource>,
    boot: String,
    /// Server time minus boottime.
    anchor: AtomicI64,
    hold: Mutex<Option<Hold>>,
    /// Whether the clocks were compared since the start. Before that, nothing expires.
    is_checked: AtomicBool,
    /// Locked shared while a deadline is computed and written, and exclusively while all deadlines move.
    pub(crate) deadlines: tokio::sync::RwLock<()>,
}

/// A period in which nothing expires, after the system clock was set.
#[derive(Debug, Clone, Copy)]
struct Hold {
    /// The difference of the clocks that started it.
    difference: i64,
    /// Boottime at which the difference is accepted.
    until: i64,
}

/// Result of [`Clock::check`]. Differences are system clock minus server time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The clocks agree, or a hold continues.
    Unchanged,
    /// The system clock was set: deadlines are held from now on.
    Held(i64),
    /// Deadlines are to be moved by the difference.
    Due(i64),
}

impl Clock {
    /// Starts the clock of this host from the time that is recorded in the store.
    pub async fn open(store: &Store) -> Result<Arc<Self>, Error> {
        let recorded = store.clock().await.map_err(error::store)?;
        Ok(Arc::new(Self::start(Box::new(Host), recorded.as_ref())))
    }

    /// Starts from the last recorded time. In the same boot, server time continues without a gap. After a reboot it is the
    /// system clock if the host's uptime and a short reboot explain the time since the record; otherwise it is the recorded
    /// time plus the uptime.
    pub(crate) fn start(source: Box<dyn TimeSource>, recorded: Option<&ClockRecord>) -> Self {
        let (system, boottime, boot) = (source.system(), source.boottime(), source.boot());
        let now = match recorded {
            None => system,
            Some(last) if last.boot == boot && last.boottime <= boottime => {
                last.at + (boottime - last.boottime)
            }
            Some(last) => {
                let explained = last.at.saturating_add(boottime);
                if (-MAX_IMMEDIATE_STEP..=MAX_REBOOT_TIME)
                    .contains(&system.saturating_sub(explained))
                {
                    system
                } else {
                    explained
                }
            }
        };
        Self {
            source,
            boot,
            anchor: AtomicI64::new(now - boottime),
            hold: Mutex::default(),
            is_checked: AtomicBool::new(false),
            deadlines: tokio::sync::RwLock::default(),
        }
    }

    /// Server time: microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.at(self.boottime())
    }

    /// Server time at a boottime.
    pub(crate) fn at(&self, boottime: i64) -> i64 {
        self.anchor.load(Ordering::Acquire) + boottime
    }

    /// Boottime at a server time.
    pub(crate) fn boottime_at(&self, at: i64) -> i64 {
        at.saturating_sub(self.anchor.load(Ordering::Acquire))
    }

    pub(crate) fn boottime(&self) -> i64 {
        self.source.boottime()
    }

    /// The system clock, for keys and signed URLs: they expire at a time of day that their holder knows.
    pub(crate) fn system(&self) -> i64 {
        self.source.system()
    }

    /// Whether deadlines are held: nothing expires.
    pub(crate) fn is_held(&self) -> bool {
        !self.is_checked.load(Ordering::Acquire) || self.hold().is_some()
    }

    /// The record to store for the present moment.
    pub(crate) fn record(&self) -> ClockRecord {
        let boottime = self.boottime();
        let at = self.at(boottime);
        ClockRecord {
            at,
            boottime,
            boot: self.boot.clone(),
            difference: self.system() - at,
            held_until: self.hold().map(|hold| self.at(hold.until)),
        }
    }

    /// Compares server time with the system clock. Called every second.
    pub(crate) fn check(&self) -> Step {
        let boottime = self.boottime();
        let difference = self.system() - self.at(boottime);
        let mut hold = self.hold();
        self.is_checked.store(true, Ordering::Release);
        match *hold {
            None if difference.abs() <= MAX_IGNORED_STEP => Step::Unchanged,
            None if difference.abs() <= MAX_IMMEDIATE_STEP => Step::Due(difference),
            Some(held) if (difference - held.difference).abs() <= MAX_IMMEDIATE_STEP => {
                if boottime < held.until {
                    Step::Unchanged
                } else if difference.abs() <= MAX_IGNORED_STEP {
                    Step::Due(0)
                } else {
                    Step::Due(difference)
                }
            }
            _ => {
                let until = boottime + HOLD;
                *hold = Some(Hold { difference, until });
                Step::Held(difference)
            }
        }
    }

    /// Moves server time by a difference and ends the hold. The caller has moved all deadlines.
    pub(crate) fn accept(&self, difference: i64) {
        self.anchor.fetch_add(difference, Ordering::AcqRel);
        *self.hold() = None;
    }

    fn hold(&self) -> MutexGuard<'_, Option<Hold>> {
        lock(&self.hold)
    }
}

impl DeadlineClock for Clock {
    fn at(&self, boottime: i64) -> i64 {
        Self::at(self, boottime)
    }

    fn boottime_at(&self, at: i64) -> i64 {
        Self::boottime_at(self, at)
    }

    fn is_held(&self) -> bool {
        Self::is_held(self)
    }
}

/// Difference in seconds between the system clock and the time that the last record and the host's uptime explain.
/// Negative if the system clock is behind. `None` if the difference is too small for a hold.
pub fn unexplained_difference(recorded: &ClockRecord) -> Option<i64> {
    match Clock::start(Box::new(Host), Some(recorded)).check() {
        Step::Held(difference) => Some(difference / SECOND),
        Step::Unchanged | Step::Due(_) => None,
    }
}
