//! The `events` table: changes of sandboxes, written in the same transaction as the row and read in order.

use atoll_model::{Event, OrgId, SandboxId};
use sqlx::FromRow;

use crate::database::{Database, execute, fetch_all, fetch_one};
use crate::{Error, Result, Store, decode_json, decode_text};

const TABLE: &str = "events";
pub(crate) const INSERT: &str =
    "INSERT INTO events (id, org, sandbox, kind, payload, at) VALUES ($1, $2, $3, $4, $5, $6)";
const AFTER: &str = "SELECT number, id, sandbox, kind, payload, at FROM events \
     WHERE org = $1 AND number > $2 ORDER BY number LIMIT $3";
const OF_SANDBOX: &str = "SELECT number, id, sandbox, kind, payload, at FROM events \
     WHERE org = $1 AND sandbox = $2 AND number > $3 ORDER BY number LIMIT $4";
const LAST: &str = "SELECT COALESCE(MAX(number), 0) FROM events";
const PRUNE: &str =
    "DELETE FROM events WHERE number IN (SELECT number FROM events WHERE at < $1 LIMIT $2)";

#[derive(FromRow)]
struct Row {
    number: i64,
    id: String,
    sandbox: String,
    kind: String,
    payload: String,
    at: i64,
}

impl TryFrom<Row> for Event {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            sequence: row.number,
            id: decode_text(TABLE, row.id)?,
            sandbox: decode_text(TABLE, row.sandbox)?,
            kind: row.kind,
            payload: decode_json(TABLE, &row.payload)?,
            occurred_at: row.at,
        })
    }
}

impl Store {
    /// Returns events of an org after a sequence number, oldest first. `sandbox` restricts them to one sandbox.
    pub async fn events(
        &self,
        org: &OrgId,
        sandbox: Option<&SandboxId>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>> {
        let _time = self.time("events");
        self.number_events().await?;
        let limit = i64::from(limit);
        let rows = match sandbox {
            None => fetch_all!(self.reader(), Row, AFTER, org.as_str(), after, limit)?,
            Some(sandbox) => fetch_all!(
                self.reader(),
                Row,
                OF_SANDBOX,
                org.as_str(),
                sandbox.as_str(),
                after,
                limit
            )?,
        };
        rows.into_iter().map(Event::try_from).collect()
    }

    /// Sequence number of the newest event. 0 if there is none.
    pub async fn last_event(&self) -> Result<i64> {
        let _time = self.time("last_event");
        self.number_events().await?;
        Ok(fetch_one!(self.reader(), (i64,), LAST)?.0)
    }

    /// Deletes up to `limit` events that occurred before a time. Returns their number.
    pub async fn prune_events(&self, before: i64, limit: u32) -> Result<u64> {
        let _time = self.time("forget_events");
        Ok(execute!(
            self.writer().on(),
            PRUNE,
            before,
            i64::from(limit)
        )?)
    }

    /// Makes the events that this process committed visible to readers.
    async fn number_events(&self) -> Result<()> {
        match &self.database {
            // The number is the row id.
            Database::Sqlite(_) => Ok(()),
            Database::Postgres(database) => database.numbering.catch_up().await,
        }
    }
}
