//! Follows the system clock: holds deadlines when it was set, moves them when the new time is accepted, and records
//! the time for the next server.

use atoll_model::Error;
use atoll_store::{SandboxRow, Store};

use crate::clock::{Clock, Step};
use crate::error;
use crate::live_sandboxes::LiveSandboxes;

/// Minimum time between two records, in microseconds. In the same boot the next server continues from any record; after
/// a reboot, this much of the host's uptime may be missing from it.
const RECORD_INTERVAL: i64 = 60_000_000;

/// Compares the clocks and acts on a difference.
pub(crate) async fn check(
    store: &Store,
    sandboxes: &LiveSandboxes,
    clock: &Clock,
) -> Result<(), Error> {
    match clock.check() {
        Step::Unchanged => Ok(()),
        Step::Held(difference) => {
            tracing::warn!(
                seconds = difference / 1_000_000,
                "the system clock differs from server time: nothing is ended or deleted for 15 minutes, then deadlines \
                 move with the clock"
            );
            let rows: Vec<SandboxRow> = sandboxes.all().iter().map(|entry| entry.row()).collect();
            let held = store.hold_deadlines(&clock.record(), &rows).await;
            held.map_err(error::store)
        }
        Step::Due(difference) => accept(store, sandboxes, clock, difference).await,
    }
}

/// Moves all deadlines by a difference and server time with them.
async fn accept(
    store: &Store,
    sandboxes: &LiveSandboxes,
    clock: &Clock,
    difference: i64,
) -> Result<(), Error> {
    let _exclusive = clock.deadlines.write().await;
    let entries = sandboxes.all();
    let rows: Vec<SandboxRow> = entries
        .iter()
        .map(|entry| {
            let mut row = entry.row();
            shift(&mut row, difference);
            row
        })
        .filter(|row| difference != 0 && row.end_at.is_some())
        .collect();
    let mut record = clock.record();
    record.at += difference;
    (record.difference, record.held_until) = (0, None);
    let moved = store.shift_deadlines(difference, &record, &rows).await;
    moved.map_err(error::store)?;
    for entry in &entries {
        entry.change(|row| shift(row, difference));
    }
    clock.accept(difference);
    tracing::info!(
        seconds = difference / 1_000_000,
        "server time follows the system clock; all deadlines have moved with it"
    );
    Ok(())
}

fn shift(row: &mut SandboxRow, by: i64) {
    row.end_at = row.end_at.map(|end| end + by);
    row.stopped_at = row.stopped_at.map(|stopped| stopped + by);
}

/// When the time was last recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Boottime.
    last: Option<i64>,
}

impl Recorder {
    /// Records the time if the last record is old enough.
    pub(crate) async fn record(&mut self, store: &Store, clock: &Clock) -> Result<(), Error> {
        let boottime = clock.boottime();
        if self
            .last
            .is_some_and(|last| boottime - last < RECORD_INTERVAL)
        {
            return Ok(());
        }
        self.last = Some(boottime);
        let recorded = store.record_clock(&clock.record()).await;
        recorded.map_err(error::store)
    }
}
