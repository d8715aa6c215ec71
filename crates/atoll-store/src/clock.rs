//! The `clock` table, and updates that move all deadlines when the system clock was set.

use atoll_model::EventId;
use sqlx::FromRow;

use crate::database::{Transaction, execute, fetch_optional};
use crate::{Result, SandboxRow, Store};

pub(crate) const READ: &str = "SELECT at, boottime, boot, difference, held_until FROM clock";
const UPSERT: &str = "INSERT INTO clock (one, at, boottime, boot, difference, held_until) VALUES (1, $1, $2, $3, $4, $5) \
     ON CONFLICT (one) DO UPDATE SET at = $1, boottime = $2, boot = $3, difference = $4, held_until = $5";
const SHIFT_DEADLINES: &str = "UPDATE sandboxes SET end_at = end_at + $1, stopped_at = stopped_at + $1 WHERE deleted_at IS NULL";

/// Reading of the clocks, recorded by a server about once a minute.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct ClockRecord {
    /// Server time: microseconds since 1970.
    pub at: i64,
    /// `CLOCK_BOOTTIME` at that moment, in microseconds.
    pub boottime: i64,
    /// Boot id of the host.
    pub boot: String,
    /// System clock minus server time, in microseconds.
    pub difference: i64,
    /// Server time until which no sandbox expires. `None` if deadlines are not held.
    pub held_until: Option<i64>,
}

/// Stores a record.
macro_rules! upsert {
    ($on:expr, $record:expr) => {
        execute!(
            $on,
            UPSERT,
            $record.at,
            $record.boottime,
            &$record.boot,
            $record.difference,
            $record.held_until
        )
    };
}

impl Store {
    /// Returns the last recorded time. `None` in a database of a version that did not record it.
    pub async fn clock(&self) -> Result<Option<ClockRecord>> {
        Ok(fetch_optional!(self.reader(), ClockRecord, READ)?)
    }

    /// Stores the time.
    pub async fn record_clock(&self, record: &ClockRecord) -> Result<()> {
        let _time = self.time("record_clock");
        upsert!(self.writer().on(), record)?;
        Ok(())
    }

    /// Stores that deadlines are held, with a `held` event for each of these sandboxes.
    pub async fn hold_deadlines(&self, record: &ClockRecord, rows: &[SandboxRow]) -> Result<()> {
        let _time = self.time("hold_deadlines");
        let mut transaction = self.begin().await?;
        upsert!(transaction.on(), record)?;
        for row in rows {
            let mut payload = crate::sandboxes::event_data(row, row.state);
            payload["clockDifference"] = (record.difference / 1_000_000).into();
            add_event(&mut transaction, row, "held", &payload, record.at).await?;
        }
        transaction.commit().await?;
        self.announce_events();
        Ok(())
    }

    /// Moves the deadlines of all sandboxes that are not deleted, and stores the time. `rows` are the changed rows; each
    /// gets a `changed` event.
    pub async fn shift_deadlines(
        &self,
        by: i64,
        record: &ClockRecord,
        rows: &[SandboxRow],
    ) -> Result<()> {
        let _time = self.time("shift_deadlines");
        let mut transaction = self.begin().await?;
        execute!(transaction.on(), SHIFT_DEADLINES, by)?;
        upsert!(transaction.on(), record)?;
        for row in rows {
            let payload = crate::sandboxes::event_data(row, row.state);
            add_event(&mut transaction, row, "changed", &payload, record.at).await?;
        }
        transaction.commit().await?;
        self.announce_events();
        Ok(())
    }
}

/// Inserts an event about a sandbox.
pub(crate) async fn add_event(
    transaction: &mut Transaction<'_>,
    row: &SandboxRow,
    kind: &str,
    payload: &serde_json::Value,
    at: i64,
) -> Result<()> {
    execute!(
        transaction.on(),
        crate::events::INSERT,
        EventId::random().as_str(),
        row.org.as_str(),
        row.id.as_str(),
        kind,
        payload.to_string(),
        at
    )?;
    Ok(())
}
