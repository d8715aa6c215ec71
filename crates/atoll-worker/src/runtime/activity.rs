//! Activity and deadlines of one sandbox.
//!
//! Times are `CLOCK_BOOTTIME` in microseconds, so that setting the system clock moves no deadline.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use atoll_model::runtime::{DeadlineClock, UseGuard};
use atoll_model::{Deadlines, ExpiryAction, Lifetime, StopReason};
use serde::{Deserialize, Serialize};

use super::SandboxEntry;
use crate::sync::lock;

/// Timeout after a restart of a sandbox whose own timeout is 0, which would expire before it can be used.
const MIN_RESTART_TIMEOUT_SECS: u32 = 300;

/// Timeouts of a sandbox and its next expiry, as stored in its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeadlineRecord {
    lifetime: Lifetime,
    /// Expiry of the timeout, while the sandbox runs.
    end: Option<i64>,
    /// Remaining timeout, while the sandbox is paused.
    left: Option<i64>,
}

impl DeadlineRecord {
    /// Deadlines of a sandbox that starts now.
    pub(crate) fn begin(lifetime: Lifetime) -> Self {
        let end = lifetime.timeout.map(|seconds| boottime() + micros(seconds));
        Self {
            lifetime,
            end,
            left: None,
        }
    }

    /// The same sandbox, paused: the timeout does not pass.
    pub(crate) fn paused(self) -> Self {
        let left = self.end.map(|end| (end - boottime()).max(0));
        Self {
            end: None,
            left: left.or(self.left),
            ..self
        }
    }

    /// The same sandbox, resumed with what was left of its timeout.
    pub(crate) fn resumed(self) -> Self {
        match self.left {
            // It was paused at the end of its timeout.
            Some(0) => self.restarted(),
            left => Self {
                end: left.map(|left| boottime() + left).or(self.end),
                left: None,
                ..self
            },
        }
    }

    /// The same sandbox, started again: the timeout begins anew.
    pub(crate) fn restarted(self) -> Self {
        let seconds = match self.lifetime.timeout {
            Some(0) => Some(MIN_RESTART_TIMEOUT_SECS),
            timeout => timeout,
        };
        Self {
            end: seconds.map(|seconds| boottime() + micros(seconds)),
            left: None,
            ..self
        }
    }

    /// The same sandbox without processes: nothing expires.
    pub(crate) fn stopped(self) -> Self {
        Self {
            end: None,
            left: None,
            ..self
        }
    }

    /// Converts deadlines from server time.
    pub(crate) fn from_server_time(deadlines: Deadlines, clock: &dyn DeadlineClock) -> Self {
        Self {
            lifetime: deadlines.lifetime,
            end: deadlines.end_at.map(|at| clock.boottime_at(at)),
            left: deadlines.time_left,
        }
    }

    /// Converts to server time.
    pub(crate) fn to_server_time(self, clock: &dyn DeadlineClock) -> Deadlines {
        Deadlines {
            lifetime: self.lifetime,
            end_at: self.end.map(|end| clock.at(end)),
            time_left: self.left,
        }
    }

    pub(crate) fn lifetime(self) -> Lifetime {
        self.lifetime
    }

    /// Whether the sandbox was paused at the end of its timeout.
    pub(crate) fn is_over(self) -> bool {
        self.left == Some(0)
    }

    /// Whether a call resumes the sandbox while it is paused.
    pub(crate) fn auto_resumes(self) -> bool {
        self.lifetime.auto_resume
    }
}

/// The next expiry of a running sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expiry {
    pub(crate) at: i64,
    pub(crate) action: ExpiryAction,
    pub(crate) reason: StopReason,
}

/// Activity and deadlines of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Time of the last activity.
    last: AtomicI64,
    /// Number of uses in progress.
    uses: AtomicUsize,
    /// A pause is in progress: new uses wait for its end and resume the sandbox.
    is_pausing: AtomicBool,
    /// `None`: the control plane has set none, and the sandbox does not expire.
    deadlines: Mutex<Option<DeadlineRecord>>,
}

impl Activity {
    pub(crate) fn new(deadlines: Option<DeadlineRecord>) -> Self {
        Self {
            last: AtomicI64::new(boottime()),
            deadlines: Mutex::new(deadlines),
            ..Self::default()
        }
    }

    pub(crate) fn deadlines(&self) -> Option<DeadlineRecord> {
        *lock(&self.deadlines)
    }

    pub(crate) fn set_deadlines(&self, deadlines: Option<DeadlineRecord>) {
        *lock(&self.deadlines) = deadlines;
    }

    pub(crate) fn record(&self) {
        self.record_at(boottime());
    }

    /// Records activity at a time, unless there was later activity.
    pub(crate) fn record_at(&self, at: i64) {
        self.last.fetch_max(at, Ordering::AcqRel);
    }

    /// Whether a use is in progress.
    pub(crate) fn is_in_use(&self) -> bool {
        self.uses.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_pausing(&self) -> bool {
        self.is_pausing.load(Ordering::Acquire)
    }

    /// Marks the sandbox as being paused until the guard is dropped.
    pub(crate) fn begin_pause(self: &Arc<Self>) -> PauseGuard {
        self.is_pausing.store(true, Ordering::Release);
        PauseGuard(Arc::clone(self))
    }

    /// The next expiry. `commands_until` returns the time of the last activity of commands; it is called only if the
    /// sandbox seems idle.
    pub(crate) fn next_expiry(
        &self,
        now: i64,
        commands_until: impl FnOnce() -> i64,
    ) -> Option<Expiry> {
        let DeadlineRecord { lifetime, end, .. } = self.deadlines()?;
        let timeout = end.map(|at| Expiry {
            at,
            action: lifetime.on_timeout,
            reason: StopReason::Timeout,
        });
        let idle = lifetime.idle_timeout.and_then(|seconds| {
            let idle_at = || self.last.load(Ordering::Acquire) + micros(seconds);
            if self.is_in_use() {
                return None;
            }
            if idle_at() <= now {
                // A running command prevents idling, and its end is activity, whichever server started it.
                self.record_at(commands_until());
            }
            (!self.is_in_use()).then(|| Expiry {
                at: idle_at(),
                action: lifetime.on_idle,
                reason: StopReason::Idle,
            })
        });
        [timeout, idle]
            .into_iter()
            .flatten()
            .min_by_key(|due| due.at)
    }
}

/// See [`Activity::begin_pause`].
#[derive(Debug)]
pub(crate) struct PauseGuard(Arc<Activity>);

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.0.is_pausing.store(false, Ordering::Release);
    }
}

/// A use of a sandbox in progress.
#[derive(Debug)]
pub(crate) struct LocalUse(Arc<Activity>);

impl LocalUse {
    pub(crate) fn begin(entry: &SandboxEntry) -> Self {
        let activity = Arc::clone(&entry.activity);
        activity.uses.fetch_add(1, Ordering::AcqRel);
        activity.record();
        Self(activity)
    }
}

impl UseGuard for LocalUse {
    fn record_activity(&self) {
        self.0.record();
    }
}

impl Drop for LocalUse {
    fn drop(&mut self) {
        self.0.record();
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The use of a sandbox that does not exist.
#[derive(Debug)]
pub(crate) struct NoUse;

impl UseGuard for NoUse {
    fn record_activity(&self) {}
}

/// `CLOCK_BOOTTIME` in microseconds.
pub(crate) fn boottime() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

fn micros(seconds: u32) -> i64 {
    i64::from(seconds) * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_after(seconds: u32) -> Lifetime {
        Lifetime {
            timeout: None,
            idle_timeout: Some(seconds),
            ..Lifetime::default()
        }
    }

    #[test]
    fn pause_keeps_the_remaining_timeout() {
        let running = DeadlineRecord::begin(Lifetime::default());
        let paused = running.paused();
        assert_eq!(paused.end, None);
        let left = paused.left.expect("a remaining timeout");
        assert!(left > 299_000_000 && left <= 300_000_000, "{left}");
        assert_eq!(paused.paused(), paused);
        let resumed = paused.resumed();
        assert!(resumed.end >= running.end && resumed.left.is_none());
        assert_eq!(resumed.resumed(), resumed);
    }

    #[test]
    fn sandbox_paused_by_its_timeout_resumes_with_a_whole_one() {
        let lifetime = Lifetime {
            timeout: Some(0),
            ..Lifetime::default()
        };
        let paused = DeadlineRecord::begin(lifetime).paused();
        assert_eq!(paused.left, Some(0));
        let resumed = paused.resumed();
        assert!(
            resumed
                .end
                .is_some_and(|end| end > boottime() + 290_000_000)
        );
    }

    #[test]
    fn sandbox_without_a_timeout_stays_without_one() {
        let running = DeadlineRecord::begin(idle_after(1));
        for now in [
            running,
            running.paused(),
            running.paused().resumed(),
            running.restarted(),
        ] {
            assert_eq!((now.end, now.left), (None, None));
        }
    }

    #[test]
    fn use_in_progress_and_running_commands_prevent_idling() {
        let activity = Arc::new(Activity::new(Some(DeadlineRecord::begin(idle_after(1)))));
        let later = boottime() + 5_000_000;
        let idle = activity.next_expiry(later, || 0).expect("it is idle");
        assert!(idle.at <= later);
        assert_eq!(idle.reason, StopReason::Idle);
        let busy = activity
            .next_expiry(later, || later)
            .expect("a command ended");
        assert_eq!(busy.at, later + 1_000_000);
        let entry = SandboxEntry::new(super::super::EntryState::Gone);
        entry.activity.set_deadlines(activity.deadlines());
        let guard = LocalUse::begin(&entry);
        assert_eq!(entry.activity.next_expiry(later, || 0), None);
        drop(guard);
        assert!(entry.activity.next_expiry(later, || 0).is_some());
    }

    #[test]
    fn earlier_expiry_wins() {
        let lifetime = Lifetime {
            timeout: Some(10),
            ..idle_after(5)
        };
        let activity = Activity::new(Some(DeadlineRecord::begin(lifetime)));
        let next = activity.next_expiry(boottime(), || 0).map(|due| due.reason);
        assert_eq!(next, Some(StopReason::Idle));
    }
}
