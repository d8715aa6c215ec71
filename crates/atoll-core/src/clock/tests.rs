#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use atoll_model::{Org, OrgId};
use atoll_store::{SandboxRow, Store};

use super::*;
use crate::control::timekeeping::check;
use crate::live_sandboxes::LiveSandboxes;

const HOUR: i64 = 60 * MINUTE;
const YEAR: i64 = 365 * 24 * HOUR;
const BEGIN: i64 = 1_700_000_000 * SECOND;

/// Clocks that a test controls.
#[derive(Debug, Clone)]
pub(crate) struct Manual {
    system: Arc<AtomicI64>,
    boottime: Arc<AtomicI64>,
    boot: &'static str,
}

impl TimeSource for Manual {
    fn system(&self) -> i64 {
        self.system.load(Ordering::Relaxed)
    }
    fn boottime(&self) -> i64 {
        self.boottime.load(Ordering::Relaxed)
    }
    fn boot(&self) -> String {
        self.boot.into()
    }
}

impl Manual {
    fn new(system: i64, boottime: i64, boot: &'static str) -> Self {
        Self {
            system: Arc::new(system.into()),
            boottime: Arc::new(boottime.into()),
            boot,
        }
    }

    /// Lets time pass on both clocks.
    fn pass(&self, time: i64) {
        self.system.fetch_add(time, Ordering::Relaxed);
        self.boottime.fetch_add(time, Ordering::Relaxed);
    }

    /// Sets the system clock forward or back.
    fn step(&self, by: i64) {
        self.system.fetch_add(by, Ordering::Relaxed);
    }

    fn start(&self, recorded: Option<&ClockRecord>) -> Clock {
        Clock::start(Box::new(self.clone()), recorded)
    }
}

/// A server clock at its first start, and the host clocks behind it.
pub(crate) fn manual() -> (Manual, Clock) {
    let host = Manual::new(BEGIN, HOUR, "first");
    let clock = host.start(None);
    (host, clock)
}

#[test]
fn server_time_does_not_step_with_the_system_clock() {
    for step in [-10 * YEAR, -HOUR, HOUR, 10 * YEAR] {
        let (host, clock) = manual();
        host.pass(10 * SECOND);
        assert_eq!(clock.now(), BEGIN + 10 * SECOND);
        assert_eq!(clock.check(), Step::Unchanged);
        host.step(step);
        assert_eq!(clock.now(), BEGIN + 10 * SECOND);
        assert!(!clock.is_held());
        assert_eq!(clock.check(), Step::Held(step));
        assert!(clock.is_held());
        // One hold of 15 minutes.
        host.pass(HOLD - SECOND);
        assert_eq!(clock.check(), Step::Unchanged);
        host.pass(SECOND);
        assert_eq!(clock.check(), Step::Due(step));
        clock.accept(step);
        assert!(!clock.is_held());
        assert_eq!(clock.now(), host.system());
        assert_eq!(clock.check(), Step::Unchanged);
    }
}

#[test]
fn suspend_and_leap_second_are_no_steps() {
    let (host, clock) = manual();
    host.pass(8 * HOUR);
    assert_eq!(clock.check(), Step::Unchanged);
    host.step(-SECOND);
    assert_eq!(clock.check(), Step::Unchanged);
}

#[test]
fn small_step_is_accepted_at_once() {
    let (host, clock) = manual();
    host.step(30 * SECOND);
    assert_eq!(clock.check(), Step::Due(30 * SECOND));
    assert!(!clock.is_held());
}

#[test]
fn step_during_a_hold_restarts_it() {
    let (host, clock) = manual();
    host.step(YEAR);
    assert_eq!(clock.check(), Step::Held(YEAR));
    host.pass(10 * MINUTE);
    host.step(-YEAR);
    assert_eq!(clock.check(), Step::Held(0));
    host.pass(10 * MINUTE);
    assert_eq!(clock.check(), Step::Unchanged);
    assert!(clock.is_held());
    host.pass(5 * MINUTE);
    assert_eq!(clock.check(), Step::Due(0));
}

/// Record of a server one hour after the start of `manual`.
fn recorded() -> ClockRecord {
    let (host, clock) = manual();
    host.pass(HOUR);
    clock.record()
}

#[test]
fn restart_in_the_same_boot_ignores_the_system_clock() {
    for step in [-YEAR, 0, YEAR] {
        let host = Manual::new(BEGIN + 3 * HOUR + step, 4 * HOUR, "first");
        let clock = host.start(Some(&recorded()));
        assert_eq!(clock.now(), BEGIN + 3 * HOUR);
        let expected = match step {
            0 => Step::Unchanged,
            step => Step::Held(step),
        };
        assert_eq!(clock.check(), expected);
    }
}

#[test]
fn reboot_accepts_only_a_plausible_system_clock() {
    let uptime = 2 * MINUTE;
    let last = recorded();
    for (off, held) in [
        (0, false),
        (3 * MINUTE, false),
        (HOUR, true),
        (10 * YEAR, true),
        (-HOUR, true),
        (-50 * YEAR, true),
    ] {
        let host = Manual::new(last.at + uptime + off, uptime, "second");
        let clock = host.start(Some(&last));
        if held {
            assert_eq!(clock.now(), last.at + uptime, "{off}");
            assert_eq!(clock.check(), Step::Held(off));
        } else {
            assert_eq!(clock.now(), host.system(), "{off}");
            assert_eq!(clock.check(), Step::Unchanged);
        }
    }
    // A record of another host, or of a container's time namespace.
    let host = Manual::new(BEGIN, MINUTE, "first");
    let clock = host.start(Some(&last));
    assert_eq!(clock.now(), last.at + MINUTE);
}

/// A store with an org, and a running and a stopped sandbox whose deadlines are ahead.
async fn fixture(clock: &Arc<Clock>) -> (tempfile::TempDir, Store, LiveSandboxes, OrgId) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("atoll.db"))
        .await
        .unwrap();
    let org = Org {
        id: OrgId::random(),
        name: "main".into(),
        max_sandboxes: None,
        max_timeout: None,
        created_at: 1,
    };
    store.insert_org(&org).await.unwrap();
    let sandboxes = LiveSandboxes::new(clock);
    for (alias, stopped_at) in [("running", None), ("stopped", Some(BEGIN))] {
        let mut row = crate::live_sandboxes::tests::row(&org.id, alias);
        store.insert_sandbox(&row, None, None).await.unwrap();
        row.end_at = Some(clock.now() + 10 * MINUTE);
        row.stopped_at = stopped_at;
        store.update_sandbox(&row, "running", 1).await.unwrap();
        sandboxes.add(row);
    }
    (directory, store, sandboxes, org.id)
}

async fn rows(store: &Store) -> Vec<SandboxRow> {
    let mut rows = store.active_sandboxes().await.unwrap();
    rows.sort_by(|one, other| one.alias.cmp(&other.alias));
    rows
}

#[tokio::test]
async fn step_moves_all_deadlines_after_the_hold() {
    for step in [-10 * YEAR, -HOUR, HOUR, 10 * YEAR] {
        let (host, clock) = manual();
        let clock = Arc::new(clock);
        let (_directory, store, sandboxes, org) = fixture(&clock).await;
        let before = rows(&store).await;
        host.step(step);
        check(&store, &sandboxes, &clock).await.unwrap();
        assert!(clock.is_held());
        assert_eq!(rows(&store).await, before);
        let recorded = store.clock().await.unwrap().unwrap();
        assert_eq!(recorded.difference, step);
        assert_eq!(recorded.held_until, Some(clock.now() + HOLD));
        let events = store.events(&org, None, 0, 100).await.unwrap();
        let held = events.iter().filter(|event| event.kind == "held");
        assert_eq!(held.count(), 2);
        assert_eq!(
            events.last().unwrap().payload["clockDifference"],
            step / SECOND
        );

        host.pass(HOLD);
        let left: Vec<i64> = before
            .iter()
            .map(|row| row.end_at.unwrap() - clock.now())
            .collect();
        check(&store, &sandboxes, &clock).await.unwrap();
        assert!(!clock.is_held());
        let after = rows(&store).await;
        for (row, left) in after.iter().zip(left) {
            assert_eq!(row.end_at.unwrap() - clock.now(), left);
            assert_eq!(clock.now(), host.system());
            let entry = sandboxes.find(&org, row.alias.as_deref().unwrap()).unwrap();
            assert_eq!(entry.row().end_at, row.end_at);
        }
        assert_eq!(after[1].stopped_at, Some(BEGIN + step));
        let recorded = store.clock().await.unwrap().unwrap();
        assert_eq!((recorded.at, recorded.held_until), (clock.now(), None));
        // The next server accepts the clock.
        let next = host.start(Some(&recorded));
        assert_eq!(next.check(), Step::Unchanged);
        store.close().await;
    }
}

#[tokio::test]
async fn deadline_written_during_a_move_is_correct() {
    let (host, clock) = manual();
    let clock = Arc::new(clock);
    let (_directory, store, sandboxes, org) = fixture(&clock).await;
    host.step(30 * SECOND);
    let entry = sandboxes.find(&org, "running").unwrap();
    let exclusive = clock.deadlines.write().await;
    let writing = entry.update(&store, |row| row.end_at = Some(clock.now() + HOUR));
    let moving = async {
        clock.accept(30 * SECOND);
        drop(exclusive);
    };
    let (written, ()) = tokio::join!(writing, moving);
    assert_eq!(written.unwrap().end_at, Some(host.system() + HOUR));
    store.close().await;
}

#[tokio::test]
async fn step_that_cannot_be_recorded_is_accepted_later() {
    let (host, clock) = manual();
    let clock = Arc::new(clock);
    let (_directory, store, sandboxes, _) = fixture(&clock).await;
    host.step(30 * SECOND);
    store.close().await;
    assert!(check(&store, &sandboxes, &clock).await.is_err());
    assert_eq!(clock.now(), BEGIN);
    assert_eq!(clock.check(), Step::Due(30 * SECOND));
}
