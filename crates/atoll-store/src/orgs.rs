//! The `orgs` table.

use atoll_model::{KeyId, Org, OrgId};
use sqlx::FromRow;

use crate::database::{execute, fetch_all, fetch_one, fetch_optional};
use crate::dialect::OrgLock;
use crate::{Error, Result, Store, decode_text, on_constraint_violation};

const TABLE: &str = "orgs";
const GET: &str = "SELECT id, name, max_sandboxes, max_timeout, created_at FROM orgs WHERE id = $1";
const LIST: &str = "SELECT id, name, max_sandboxes, max_timeout, created_at FROM orgs ORDER BY created_at DESC, id";
const INSERT: &str = "INSERT INTO orgs (id, name, max_sandboxes, max_timeout, created_at) \
     VALUES ($1, $2, $3, $4, $5)";
const UPDATE: &str =
    "UPDATE orgs SET name = $2, max_sandboxes = $3, max_timeout = $4 WHERE id = $1";
const COUNT_SANDBOXES: &str =
    "SELECT COUNT(*) FROM sandboxes WHERE org = $1 AND deleted_at IS NULL";
const SESSIONS: &str = "SELECT session FROM sandboxes WHERE org = $1";
// In the order of their foreign keys.
const DELETE_ORG_IDEMPOTENCY: &str = "DELETE FROM idempotency WHERE org = $1";
const DELETE_SANDBOXES: &str = "DELETE FROM sandboxes WHERE org = $1";
const DELETE_TEMPLATES: &str = "DELETE FROM templates WHERE org = $1";
const DELETE_KEYS: &str = "DELETE FROM keys WHERE org = $1 RETURNING id";
const DELETE: &str = "DELETE FROM orgs WHERE id = $1";
const DELETE_COMMANDS: &str = "DELETE FROM commands WHERE id IN \
     (SELECT id FROM commands WHERE session = $1 LIMIT $2)";
const DELETE_EVENTS: &str = "DELETE FROM events WHERE id IN \
     (SELECT id FROM events WHERE org = $1 LIMIT $2)";
/// Rows of one statement, so that other writers get their turn.
const BATCH: i64 = 500;

/// Result of [`Store::remove_org`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrgRemoval {
    /// The org is gone.
    Removed {
        /// Ids of its keys, which were removed too.
        keys: Vec<KeyId>,
        /// Ids of its sessions, for [`Store::remove_history`].
        sessions: Vec<String>,
    },
    /// Nothing was changed: the org has this number of sandboxes that are not deleted.
    HasSandboxes(i64),
    /// There is no such org.
    NotFound,
}

#[derive(FromRow)]
struct Row {
    id: String,
    name: String,
    max_sandboxes: Option<i64>,
    max_timeout: Option<i64>,
    created_at: i64,
}

impl TryFrom<Row> for Org {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let number = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Self {
            id: decode_text(TABLE, row.id)?,
            name: row.name,
            max_sandboxes: row.max_sandboxes.map(number),
            max_timeout: row.max_timeout.map(number),
            created_at: row.created_at,
        })
    }
}

impl Store {
    /// Finds an org by id.
    pub async fn org(&self, id: &OrgId) -> Result<Option<Org>> {
        let _time = self.time("org");
        let row = fetch_optional!(self.reader(), Row, GET, id.as_str())?;
        row.map(Org::try_from).transpose()
    }

    /// Returns all orgs, newest first.
    pub async fn orgs(&self) -> Result<Vec<Org>> {
        let _time = self.time("orgs");
        let rows = fetch_all!(self.reader(), Row, LIST)?;
        rows.into_iter().map(Org::try_from).collect()
    }

    /// Inserts an org. Its name must be unique.
    pub async fn insert_org(&self, org: &Org) -> Result<()> {
        let _time = self.time("add_org");
        execute!(
            self.writer().on(),
            INSERT,
            org.id.as_str(),
            &org.name,
            org.max_sandboxes.map(i64::from),
            org.max_timeout.map(i64::from),
            org.created_at
        )
        .map_err(on_constraint_violation("the org's name"))?;
        Ok(())
    }

    /// Updates name and limits of an org.
    pub async fn update_org(&self, org: &Org) -> Result<()> {
        let _time = self.time("change_org");
        execute!(
            self.writer().on(),
            UPDATE,
            org.id.as_str(),
            &org.name,
            org.max_sandboxes.map(i64::from),
            org.max_timeout.map(i64::from)
        )
        .map_err(on_constraint_violation("the org's name"))?;
        Ok(())
    }

    /// Removes an org with its keys, idempotency keys and sessions, unless it has sandboxes that are not deleted.
    /// A later insert of a sandbox or a key of this org fails with [`Error::OrgNotFound`].
    pub async fn remove_org(&self, id: &OrgId) -> Result<OrgRemoval> {
        let _time = self.time("remove_org");
        let org = id.as_str();
        let mut transaction = self.begin().await?;
        // No sandbox can be inserted between the count and the removal.
        transaction.lock_org(id, OrgLock::Removal).await?;
        let (sandboxes,) = fetch_one!(transaction.on(), (i64,), COUNT_SANDBOXES, org)?;
        if sandboxes > 0 {
            return Ok(OrgRemoval::HasSandboxes(sandboxes));
        }
        let sessions = fetch_all!(transaction.on(), (String,), SESSIONS, org)?;
        for statement in [DELETE_ORG_IDEMPOTENCY, DELETE_SANDBOXES, DELETE_TEMPLATES] {
            execute!(transaction.on(), statement, org)?;
        }
        let keys = fetch_all!(transaction.on(), (String,), DELETE_KEYS, org)?;
        let deleted = execute!(transaction.on(), DELETE, org)?;
        transaction.commit().await?;
        if deleted == 0 {
            return Ok(OrgRemoval::NotFound);
        }
        let keys = keys.into_iter().map(|(key,)| decode_text("keys", key));
        let keys = keys.collect::<Result<_>>()?;
        let sessions = sessions.into_iter().map(|(session,)| session).collect();
        Ok(OrgRemoval::Removed { keys, sessions })
    }

    /// Deletes the commands and events of an org that was removed, in batches. Retention deletes what a crash leaves of
    /// them.
    pub async fn remove_history(&self, org: &OrgId, sessions: &[String]) -> Result<()> {
        let _time = self.time("remove_history");
        for session in sessions {
            self.delete_in_batches(DELETE_COMMANDS, session).await?;
        }
        self.delete_in_batches(DELETE_EVENTS, org.as_str()).await
    }

    async fn delete_in_batches(&self, statement: &'static str, value: &str) -> Result<()> {
        loop {
            let deleted = execute!(self.writer().on(), statement, value, BATCH)?;
            if deleted < BATCH as u64 {
                return Ok(());
            }
        }
    }
}
