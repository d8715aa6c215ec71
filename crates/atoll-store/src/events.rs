//! What happened to sandboxes: written with the row it is about, read in order.

use atoll_model::{EventId, OrgId, SandboxId};
use sqlx::FromRow;

use crate::{Error, Result, Store, parse, word};

const TABLE: &str = "events";
pub(crate) const INSERT: &str =
    "INSERT INTO events (id, org, sandbox, kind, payload, at) VALUES ($1, $2, $3, $4, $5, $6)";
const AFTER: &str = "SELECT number, id, sandbox, kind, payload, at FROM events \
     WHERE org = $1 AND number > $2 ORDER BY number LIMIT $3";
const OF_SANDBOX: &str = "SELECT number, id, sandbox, kind, payload, at FROM events \
     WHERE org = $1 AND sandbox = $2 AND number > $3 ORDER BY number LIMIT $4";
const LAST: &str = "SELECT COALESCE(MAX(number), 0) FROM events";
const FORGET: &str =
    "DELETE FROM events WHERE number IN (SELECT number FROM events WHERE at < $1 LIMIT $2)";

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Where a reader goes on after it.
    pub number: i64,
    /// Its id.
    pub id: EventId,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// What: `created`, `running`, `paused`, `stopped`, `failed`, `deleted`, `changed`, `held`.
    pub kind: String,
    /// What can be said about it.
    pub payload: serde_json::Value,
    /// When: microseconds since 1970.
    pub at: i64,
}

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
            number: row.number,
            id: word(TABLE, row.id)?,
            sandbox: word(TABLE, row.sandbox)?,
            kind: row.kind,
            payload: parse(TABLE, &row.payload)?,
            at: row.at,
        })
    }
}

impl Store {
    /// An org's events after a number, oldest first; perhaps those of one sandbox.
    pub async fn events(
        &self,
        org: &OrgId,
        sandbox: Option<&SandboxId>,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>> {
        let _time = self.time("events");
        let rows = match sandbox {
            None => {
                let query = sqlx::query_as::<_, Row>(AFTER).bind(org.as_str());
                let query = query.bind(after).bind(i64::from(limit));
                query.fetch_all(&self.read).await?
            }
            Some(sandbox) => {
                let query = sqlx::query_as::<_, Row>(OF_SANDBOX).bind(org.as_str());
                let query = query.bind(sandbox.as_str()).bind(after);
                query.bind(i64::from(limit)).fetch_all(&self.read).await?
            }
        };
        rows.into_iter().map(Event::try_from).collect()
    }

    /// The number of the newest event of all.
    pub async fn last_event(&self) -> Result<i64> {
        let _time = self.time("last_event");
        let query = sqlx::query_scalar::<_, i64>(LAST);
        Ok(query.fetch_one(&self.read).await?)
    }

    /// Forgets some events from before a time; how many.
    pub async fn forget_events(&self, before: i64, most: u32) -> Result<u64> {
        let _time = self.time("forget_events");
        let query = sqlx::query(FORGET).bind(before).bind(i64::from(most));
        Ok(query.execute(&*self.writer()).await?.rows_affected())
    }
}
