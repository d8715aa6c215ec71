//! Sandboxes: what should be of each, and what was of those that are deleted.

use std::collections::BTreeMap;

use atoll_model::{
    Again, EventId, Lifetime, Limits, Network, OrgId, Policy, PortAccess, SandboxId, SandboxState,
    SessionId, StopReason,
};
use sqlx::FromRow;

use crate::clock::add_event;
use crate::{Error, Result, Store, parse, taken, text, word};

const TABLE: &str = "sandboxes";
const COLUMNS: &str = "id, session, org, alias, template, state, reason, error, metadata, limits, network, \
     lifetime, policy, port_access, durable, created_at, started_at, end_at, time_left, stopped_at, deleted_at";
// Counted and written in one transaction, while nobody else counts: no two creates can both be the last that fits. What
// belongs to a row that did not fit is not written either.
const ADD: &str = "BEGIN IMMEDIATE; \
     INSERT INTO sandboxes (id, session, org, alias, template, state, metadata, limits, \
     network, lifetime, created_at, policy, port_access, durable) \
     SELECT $1, $2, $3, $4, $5, 'creating', $6, $7, $8, $9, $10, $12, $13, $18 \
     WHERE $11 IS NULL OR (SELECT COUNT(*) FROM sandboxes WHERE org = $3 AND deleted_at IS NULL \
     AND state IN ('creating', 'running', 'stopping', 'paused')) < $11 RETURNING id; \
     INSERT INTO idempotency (org, key, fingerprint, sandbox, created_at) SELECT $3, $14, $15, $1, $10 \
     WHERE $14 IS NOT NULL AND EXISTS (SELECT 1 FROM sandboxes WHERE id = $1); \
     INSERT INTO events (id, org, sandbox, kind, payload, at) SELECT $16, $3, $1, 'created', $17, $10 \
     WHERE EXISTS (SELECT 1 FROM sandboxes WHERE id = $1); \
     COMMIT";
// One whose start could not be written down to its end is still being made by its row.
const AGAIN: &str = "UPDATE sandboxes SET state = 'creating' WHERE id = $1 AND state IN ('stopped', 'creating') \
     AND ($2 IS NULL OR (SELECT COUNT(*) FROM sandboxes AS other WHERE other.org = sandboxes.org AND other.id <> sandboxes.id \
     AND other.deleted_at IS NULL AND other.state IN ('creating', 'running', 'stopping', 'paused')) < $2)";
const ADOPT: &str = "INSERT INTO sandboxes (id, session, org, template, state, reason, metadata, limits, network, \
     lifetime, policy, port_access, durable, created_at, started_at, end_at, stopped_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";
const DELETED: &str = "SELECT session FROM sandboxes WHERE id = $1 AND deleted_at IS NOT NULL";
// A write that changes nothing: whoever wants to count the org's sandboxes waits for who counts them now.
const COUNTED_OF: &str =
    "UPDATE orgs SET name = name WHERE id = (SELECT org FROM sandboxes WHERE id = $1)";
const OVER: &str =
    "DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes WHERE deleted_at < $1 LIMIT $2)";
const RECALL: &str = "SELECT fingerprint, sandbox FROM idempotency WHERE org = $1 AND key = $2";
const UNMAKE: &str = "DELETE FROM sandboxes WHERE id = $1 AND state = 'creating'";
const UNSAY: &str = "DELETE FROM idempotency WHERE sandbox = $1";
const FORGET: &str = "DELETE FROM idempotency WHERE sandbox IN \
     (SELECT sandbox FROM idempotency WHERE created_at < $1 LIMIT $2)";
const UPDATE: &str = "BEGIN IMMEDIATE; UPDATE sandboxes SET state = $2, reason = $3, error = $4, started_at = $5, end_at = $6, \
     time_left = $7, stopped_at = $8, deleted_at = $9, alias = $10, metadata = $11, limits = $12, \
     network = $13, lifetime = $14, policy = $15, port_access = $16 WHERE id = $1; \
     INSERT INTO events (id, org, sandbox, kind, payload, at) SELECT $22, $18, $1, $23, $24, $21 WHERE $22 IS NOT NULL; \
     INSERT INTO events (id, org, sandbox, kind, payload, at) VALUES ($17, $18, $1, $19, $20, $21); COMMIT";

/// A sandbox's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// Its id.
    pub id: SandboxId,
    /// Its name in the history.
    pub session: SessionId,
    /// Whose it is.
    pub org: OrgId,
    /// What else it is called.
    pub alias: Option<String>,
    /// What it was made from.
    pub template: String,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it does not run, if nobody asked for that.
    pub reason: Option<StopReason>,
    /// Why it could not be made.
    pub error: Option<String>,
    /// What its owner wrote on it.
    pub metadata: BTreeMap<String, String>,
    /// Its ceilings.
    pub limits: Limits,
    /// What it is connected to.
    pub network: Network,
    /// What it may reach there.
    pub policy: Policy,
    /// Callers that may use its ports.
    pub port_access: PortAccess,
    /// `fsync` inside reaches the disk.
    pub durable: bool,
    /// When its time is up.
    pub lifetime: Lifetime,
    /// When it was asked for.
    pub created_at: i64,
    /// When it last began to run.
    pub started_at: Option<i64>,
    /// When its time is up: that of its life while it runs, that of its files when it has stopped.
    pub end_at: Option<i64>,
    /// What was left of its time when it was paused.
    pub time_left: Option<i64>,
    /// When its processes ended.
    pub stopped_at: Option<i64>,
    /// When it was deleted.
    pub deleted_at: Option<i64>,
}

#[derive(FromRow)]
struct Row {
    id: String,
    session: String,
    org: String,
    alias: Option<String>,
    template: String,
    state: String,
    reason: Option<String>,
    error: Option<String>,
    metadata: String,
    limits: String,
    network: String,
    lifetime: String,
    policy: String,
    port_access: String,
    durable: i64,
    created_at: i64,
    started_at: Option<i64>,
    end_at: Option<i64>,
    time_left: Option<i64>,
    stopped_at: Option<i64>,
    deleted_at: Option<i64>,
}

impl TryFrom<Row> for SandboxRow {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            id: word(TABLE, row.id)?,
            session: word(TABLE, row.session)?,
            org: word(TABLE, row.org)?,
            alias: row.alias,
            template: row.template,
            state: word(TABLE, row.state)?,
            reason: row.reason.map(|reason| word(TABLE, reason)).transpose()?,
            error: row.error,
            metadata: parse(TABLE, &row.metadata)?,
            limits: parse(TABLE, &row.limits)?,
            network: word(TABLE, row.network)?,
            lifetime: parse(TABLE, &row.lifetime)?,
            policy: parse(TABLE, &row.policy)?,
            port_access: word(TABLE, row.port_access)?,
            durable: row.durable != 0,
            created_at: row.created_at,
            started_at: row.started_at,
            end_at: row.end_at,
            time_left: row.time_left,
            stopped_at: row.stopped_at,
            deleted_at: row.deleted_at,
        })
    }
}

/// How a claim on a place in an org ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The row is there.
    Made,
    /// The org has as many as it may have.
    Full,
}

/// What happened to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Happened {
    /// What it is called.
    pub kind: &'static str,
    /// A state that it was in on the way, which is told first.
    pub through: Option<SandboxState>,
}

impl From<&'static str> for Happened {
    fn from(kind: &'static str) -> Self {
        let through = None;
        Self { kind, through }
    }
}

/// Which part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// At most so many.
    pub limit: u32,
    /// Only those before this: when made, and id.
    pub before: Option<(i64, String)>,
}

impl Page {
    /// The same, with one more: whether there is a next page is seen then.
    #[must_use]
    pub fn one_more(&self) -> Self {
        Self {
            limit: self.limit + 1,
            before: self.before.clone(),
        }
    }

    /// Everything on it is before this.
    pub(crate) fn start(&self) -> (i64, String) {
        self.before.clone().unwrap_or((i64::MAX, String::new()))
    }
}

impl Store {
    /// Writes down that a sandbox is to be, if its org may have one more; and how this can be said again.
    pub async fn add_sandbox(
        &self,
        row: &SandboxRow,
        most: Option<u32>,
        again: Option<&Again>,
    ) -> Result<Claim> {
        let _time = self.time("add_sandbox");
        let query = sqlx::query(ADD)
            .bind(row.id.as_str())
            .bind(row.session.as_str())
            .bind(row.org.as_str())
            .bind(&row.alias)
            .bind(&row.template)
            .bind(text(&row.metadata))
            .bind(text(&row.limits))
            .bind(text(&row.network))
            .bind(text(&row.lifetime))
            .bind(row.created_at)
            .bind(most.map(i64::from))
            .bind(text(&row.policy))
            .bind(text(&row.port_access))
            .bind(again.map(|again| &again.key))
            .bind(again.map(|again| &again.fingerprint))
            .bind(EventId::random().as_str().to_owned())
            .bind(payload(row, row.state))
            .bind(i64::from(row.durable));
        let made = self.write_whole(query).await.map_err(|error| {
            let said = error.to_string().contains("idempotency.");
            match taken("the alias")(error) {
                Error::Taken(_) if said => Error::Said,
                error => error,
            }
        })?;
        if made.is_empty() {
            return Ok(Claim::Full);
        }
        self.news.send_replace(());
        Ok(Claim::Made)
    }

    /// Inserts the row of a sandbox that exists already, whole.
    pub async fn adopt_sandbox(&self, row: &SandboxRow, at: i64) -> Result<()> {
        let _time = self.time("adopt_sandbox");
        let mut transaction = self.write.begin().await?;
        let query = sqlx::query(ADOPT)
            .bind(row.id.as_str())
            .bind(row.session.as_str())
            .bind(row.org.as_str())
            .bind(&row.template)
            .bind(text(&row.state))
            .bind(row.reason.as_ref().map(text))
            .bind(text(&row.metadata))
            .bind(text(&row.limits))
            .bind(text(&row.network))
            .bind(text(&row.lifetime))
            .bind(text(&row.policy))
            .bind(text(&row.port_access))
            .bind(i64::from(row.durable))
            .bind(row.created_at)
            .bind(row.started_at)
            .bind(row.end_at)
            .bind(row.stopped_at);
        query.execute(&mut *transaction).await?;
        let payload = event_data(row, row.state);
        add_event(&mut transaction, row, row.state.name(), &payload, at).await?;
        transaction.commit().await?;
        self.news.send_replace(());
        Ok(())
    }

    /// The fingerprint of a create that was said before by a key, and the sandbox it made.
    pub async fn said_before(
        &self,
        org: &OrgId,
        key: &str,
    ) -> Result<Option<(String, SandboxRow)>> {
        let _time = self.time("said_before");
        let query = sqlx::query_as::<_, (String, String)>(RECALL)
            .bind(org.as_str())
            .bind(key);
        let Some((fingerprint, sandbox)) = query.fetch_optional(&self.read).await? else {
            return Ok(None);
        };
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM sandboxes WHERE id = $1"));
        let query = sqlx::query_as::<_, Row>(sql).bind(sandbox);
        let row = query.fetch_optional(&self.read).await?;
        let row = row.map(SandboxRow::try_from).transpose()?;
        Ok(row.map(|row| (fingerprint, row)))
    }

    /// Takes back a row that nobody was told of. Its id is free again: what was to be the sandbox may still be ready for
    /// somebody else.
    pub async fn unmake(&self, row: &SandboxRow, at: i64) -> Result<()> {
        let _time = self.time("unmake");
        let writer = self.writer();
        let mut transaction = writer.begin().await?;
        for statement in [UNSAY, UNMAKE] {
            let query = sqlx::query(statement).bind(row.id.as_str());
            query.execute(&mut *transaction).await?;
        }
        let payload = event_data(row, row.state);
        add_event(&mut transaction, row, "deleted", &payload, at).await?;
        transaction.commit().await?;
        self.news.send_replace(());
        Ok(())
    }

    /// A create that failed may be tried again by the same key.
    pub async fn forget_said(&self, sandbox: &SandboxId) -> Result<()> {
        let _time = self.time("forget_said");
        let query = sqlx::query(UNSAY).bind(sandbox.as_str());
        query.execute(&*self.writer()).await?;
        Ok(())
    }

    /// Forgets some of what was said before a time; how much.
    pub async fn forget_said_before(&self, before: i64, most: u32) -> Result<u64> {
        let _time = self.time("forget_said_before");
        let query = sqlx::query(FORGET).bind(before).bind(i64::from(most));
        Ok(query.execute(&*self.writer()).await?.rows_affected())
    }

    /// Takes a place in its org for a stopped sandbox that is to run again.
    pub async fn claim_again(&self, id: &SandboxId, most: Option<u32>) -> Result<Claim> {
        let _time = self.time("claim_again");
        let writer = self.writer();
        let mut transaction = writer.begin().await?;
        if most.is_some() {
            let query = sqlx::query(COUNTED_OF).bind(id.as_str());
            query.execute(&mut *transaction).await?;
        }
        let query = sqlx::query(AGAIN)
            .bind(id.as_str())
            .bind(most.map(i64::from));
        let done = query.execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(if done.rows_affected() == 1 {
            Claim::Made
        } else {
            Claim::Full
        })
    }

    /// The session of a sandbox that was deleted.
    pub async fn deleted(&self, id: &SandboxId) -> Result<Option<SessionId>> {
        let _time = self.time("deleted");
        let query = sqlx::query_scalar::<_, String>(DELETED).bind(id.as_str());
        let session = query.fetch_optional(&self.read).await?;
        session.map(|session| word(TABLE, session)).transpose()
    }

    /// Forgets some sandboxes that were deleted before a time; how many.
    pub async fn forget_deleted(&self, before: i64, most: u32) -> Result<u64> {
        let query = sqlx::query(OVER).bind(before).bind(i64::from(most));
        Ok(query.execute(&*self.writer()).await?.rows_affected())
    }

    /// The row of a session of an org, deleted or not, by its id or its sandbox's.
    pub async fn session(&self, org: &OrgId, name: &str) -> Result<Option<SandboxRow>> {
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE org = $1 AND (session = $2 OR id = $2)"
        ));
        let query = sqlx::query_as::<_, Row>(sql).bind(org.as_str()).bind(name);
        let row = query.fetch_optional(&self.read).await?;
        row.map(SandboxRow::try_from).transpose()
    }

    /// The row of a sandbox, by id or by its alias in an org.
    pub async fn sandbox(&self, org: &OrgId, name: &str) -> Result<Option<SandboxRow>> {
        let _time = self.time("sandbox");
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE org = $1 AND deleted_at IS NULL AND (id = $2 OR alias = $2)"
        ));
        let query = sqlx::query_as::<_, Row>(sql).bind(org.as_str()).bind(name);
        let row = query.fetch_optional(&self.read).await?;
        row.map(SandboxRow::try_from).transpose()
    }

    /// The rows of all sandboxes that are not deleted.
    pub async fn living(&self) -> Result<Vec<SandboxRow>> {
        let _time = self.time("living");
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE deleted_at IS NULL"
        ));
        let rows = sqlx::query_as::<_, Row>(sql).fetch_all(&self.read).await?;
        rows.into_iter().map(SandboxRow::try_from).collect()
    }

    /// Sandboxes of an org, newest first: those that are there, or all that ever were; perhaps only those in a state.
    pub async fn sandboxes(
        &self,
        org: &OrgId,
        all: bool,
        state: Option<SandboxState>,
        page: &Page,
    ) -> Result<Vec<SandboxRow>> {
        let _time = self.time("sandboxes");
        let (at, id) = page.start();
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE org = $1 AND ($2 OR deleted_at IS NULL) \
             AND ($3 IS NULL OR state = $3) AND (created_at < $4 OR (created_at = $4 AND id < $5)) \
             ORDER BY created_at DESC, id DESC LIMIT $6"
        ));
        let query = sqlx::query_as::<_, Row>(sql)
            .bind(org.as_str())
            .bind(all)
            .bind(state.map(SandboxState::name))
            .bind(at)
            .bind(id)
            .bind(i64::from(page.limit));
        let rows = query.fetch_all(&self.read).await?;
        rows.into_iter().map(SandboxRow::try_from).collect()
    }

    /// Writes a row as it is now, and what happened to it.
    pub async fn update_sandbox(
        &self,
        row: &SandboxRow,
        what: impl Into<Happened>,
        at: i64,
    ) -> Result<()> {
        let _time = self.time("update_sandbox");
        let Happened { kind, through } = what.into();
        let before = through.map(|state| (EventId::random(), state));
        let query = sqlx::query(UPDATE)
            .bind(row.id.as_str())
            .bind(text(&row.state))
            .bind(row.reason.as_ref().map(text))
            .bind(&row.error)
            .bind(row.started_at)
            .bind(row.end_at)
            .bind(row.time_left)
            .bind(row.stopped_at)
            .bind(row.deleted_at)
            .bind(&row.alias)
            .bind(text(&row.metadata))
            .bind(text(&row.limits))
            .bind(text(&row.network))
            .bind(text(&row.lifetime))
            .bind(text(&row.policy))
            .bind(text(&row.port_access))
            .bind(EventId::random().as_str().to_owned())
            .bind(row.org.as_str())
            .bind(kind)
            .bind(payload(row, row.state))
            .bind(at)
            .bind(before.as_ref().map(|(id, _)| id.as_str().to_owned()))
            .bind(before.as_ref().map(|(_, state)| state.name()))
            .bind(before.as_ref().map(|(_, state)| payload(row, *state)));
        let done = self.write_whole(query).await;
        done.map_err(taken("the alias"))?;
        self.news.send_replace(());
        Ok(())
    }
}

/// What an event tells of a sandbox in a state.
pub(crate) fn event_data(row: &SandboxRow, state: SandboxState) -> serde_json::Value {
    serde_json::json!({
        "state": state, "reason": row.reason, "error": row.error, "alias": row.alias,
        "templateID": row.template,
    })
}

fn payload(row: &SandboxRow, state: SandboxState) -> String {
    event_data(row, state).to_string()
}
