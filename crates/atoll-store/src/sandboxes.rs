//! The `sandboxes` table: the desired state of each sandbox, and the history of deleted ones.

use std::collections::BTreeMap;

use atoll_model::{
    EventId, Idempotency, Lifetime, Limits, Network, NetworkPolicy, OrgId, PageRequest, PortAccess,
    SandboxId, SandboxState, SessionId, StopReason,
};
use sqlx::postgres::{PgArguments, PgQueryResult};
use sqlx::query::Query;
use sqlx::{FromRow, Postgres};

use crate::clock::add_event;
use crate::database::postgres::within_limit;
use crate::database::{Database, On, execute, fetch_all, fetch_one, fetch_optional};
use crate::dialect::OrgLock;
use crate::idempotency::DELETE_IDEMPOTENCY;
use crate::quota::{QuotaClaim, counted_states};
use crate::{Error, Result, Store, decode_json, decode_text, encode, on_constraint_violation};

const TABLE: &str = "sandboxes";
const COLUMNS: &str = "id, session, org, alias, template, state, reason, error, metadata, limits, network, \
     lifetime, policy, port_access, durable, created_at, started_at, end_at, time_left, stopped_at, deleted_at";
// `BEGIN IMMEDIATE` excludes other writers, so that two creates cannot both take the last place of the quota. The later
// statements have no effect if the first one inserted no row.
const INSERT: &str = concat!(
    "BEGIN IMMEDIATE; \
     INSERT INTO sandboxes (id, session, org, alias, template, state, metadata, limits, \
     network, lifetime, created_at, policy, port_access, durable) \
     SELECT $1, $2, $3, $4, $5, 'creating', $6, $7, $8, $9, $10, $12, $13, $18 \
     WHERE $11 IS NULL OR (SELECT COUNT(*) FROM sandboxes WHERE org = $3 AND deleted_at IS NULL \
          AND state IN ",
    counted_states!(),
    ") < $11 RETURNING id; \
     INSERT INTO idempotency (org, key, fingerprint, sandbox, created_at) SELECT $3, $14, $15, $1, $10 \
     WHERE $14 IS NOT NULL AND EXISTS (SELECT 1 FROM sandboxes WHERE id = $1); \
     INSERT INTO events (id, org, sandbox, kind, payload, at) SELECT $16, $3, $1, 'created', $17, $10 \
     WHERE EXISTS (SELECT 1 FROM sandboxes WHERE id = $1); \
          COMMIT"
);
/// The same in PostgreSQL. Concurrent transactions are excluded by a lock on the org's row. The commit does not wait for
/// the disk, because the create is acknowledged only after a later commit, which does: a crash of the database server
/// undoes both or the later one.
const INSERT_POSTGRES: &str = concat!(
    "WITH inserted AS (INSERT INTO sandboxes (id, session, org, alias, template, state, metadata, limits, \
     network, lifetime, created_at, policy, port_access, durable) \
     SELECT $1, $2, $3, $4, $5, 'creating', $6, $7, $8, $9, $10, $12, $13, $18 \
     WHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off' \
     AND (CAST($11 AS BIGINT) IS NULL OR (SELECT COUNT(*) FROM sandboxes WHERE org = $3 AND deleted_at IS NULL \
          AND state IN ",
    counted_states!(),
    ") < $11) RETURNING id), \
     remembered AS (INSERT INTO idempotency (org, key, fingerprint, sandbox, created_at) \
     SELECT $3, $14, $15, id, $10 FROM inserted WHERE CAST($14 AS TEXT) IS NOT NULL) \
     INSERT INTO events (id, org, sandbox, kind, payload, at) SELECT $16, $3, id, 'created', $17, $10 FROM inserted \
     RETURNING sandbox"
);
const ADOPT: &str = "INSERT INTO sandboxes (id, session, org, template, state, reason, metadata, limits, network, \
     lifetime, policy, port_access, durable, created_at, started_at, end_at, stopped_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";
const SESSION: &str = "SELECT session FROM sandboxes WHERE id = $1";
const IS_DELETED: &str = "SELECT COUNT(*) FROM sandboxes WHERE id = $1 AND deleted_at IS NOT NULL";
const PRUNE_DELETED: &str =
    "DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes WHERE deleted_at < $1 LIMIT $2)";
const DELETE_CREATING: &str = "DELETE FROM sandboxes WHERE id = $1 AND state = 'creating'";
const UPDATE: &str = "BEGIN IMMEDIATE; UPDATE sandboxes SET state = $2, reason = $3, error = $4, started_at = $5, end_at = $6, \
     time_left = $7, stopped_at = $8, deleted_at = $9, alias = $10, metadata = $11, limits = $12, \
     network = $13, lifetime = $14, policy = $15, port_access = $16 WHERE id = $1; \
     INSERT INTO events (id, org, sandbox, kind, payload, at) SELECT $22, $18, $1, $23, $24, $21 WHERE $22 IS NOT NULL; \
     INSERT INTO events (id, org, sandbox, kind, payload, at) VALUES ($17, $18, $1, $19, $20, $21); COMMIT";

/// The same in PostgreSQL. The events are inserted in their order, after the row is locked, and only if there is a row: a
/// crash of the database server may have undone the insert.
const UPDATE_POSTGRES: &str = "WITH updated AS (UPDATE sandboxes SET state = $2, reason = $3, error = $4, started_at = $5, \
     end_at = $6, time_left = $7, stopped_at = $8, deleted_at = $9, alias = $10, metadata = $11, limits = $12, \
     network = $13, lifetime = $14, policy = $15, port_access = $16 WHERE id = $1 RETURNING id) \
     INSERT INTO events (id, org, sandbox, kind, payload, at) \
     SELECT event.id, $18, $1, event.kind, event.payload, $21 FROM (SELECT COUNT(*) AS rows FROM updated) AS done \
     CROSS JOIN (VALUES (CAST($22 AS TEXT), CAST($23 AS TEXT), CAST($24 AS TEXT), 1), ($17, $19, $20, 2)) \
     AS event (id, kind, payload, position) WHERE event.id IS NOT NULL AND done.rows > 0 ORDER BY event.position";

/// Row of a sandbox: its desired state. All times are in microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// Sandbox id.
    pub id: SandboxId,
    /// Id of its history.
    pub session: SessionId,
    /// Owner.
    pub org: OrgId,
    /// Alias. Unique per org among sandboxes that are not deleted.
    pub alias: Option<String>,
    /// Template name.
    pub template: String,
    /// Lifecycle state.
    pub state: SandboxState,
    /// Why it stopped without a stop request.
    pub reason: Option<StopReason>,
    /// Why it failed.
    pub error: Option<String>,
    /// Key-value pairs of the owner.
    pub metadata: BTreeMap<String, String>,
    /// Resource limits.
    pub limits: Limits,
    /// Network mode.
    pub network: Network,
    /// Rules for outgoing connections.
    pub policy: NetworkPolicy,
    /// Credential that requests to its ports need.
    pub port_access: PortAccess,
    /// Whether `fsync` in the sandbox waits for the disk.
    pub durable: bool,
    /// Timeouts and their actions.
    pub lifetime: Lifetime,
    /// Time of the create request.
    pub created_at: i64,
    /// Time of the last start.
    pub started_at: Option<i64>,
    /// Next expiry: of the timeout while it runs, of the retention of its files while it is stopped.
    pub end_at: Option<i64>,
    /// Remaining timeout of a paused sandbox, in microseconds.
    pub time_left: Option<i64>,
    /// Time at which its processes were frozen or ended.
    pub stopped_at: Option<i64>,
    /// Time of the deletion.
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
            id: decode_text(TABLE, row.id)?,
            session: decode_text(TABLE, row.session)?,
            org: decode_text(TABLE, row.org)?,
            alias: row.alias,
            template: row.template,
            state: decode_text(TABLE, row.state)?,
            reason: row
                .reason
                .map(|reason| decode_text(TABLE, reason))
                .transpose()?,
            error: row.error,
            metadata: decode_json(TABLE, &row.metadata)?,
            limits: decode_json(TABLE, &row.limits)?,
            network: decode_text(TABLE, row.network)?,
            lifetime: decode_json(TABLE, &row.lifetime)?,
            policy: decode_json(TABLE, &row.policy)?,
            port_access: decode_text(TABLE, row.port_access)?,
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

/// The event that an update of a row records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeEvent {
    /// Kind of the event.
    pub kind: &'static str,
    /// Intermediate state that gets its own event before this one.
    pub preceded_by: Option<SandboxState>,
}

impl From<&'static str> for ChangeEvent {
    fn from(kind: &'static str) -> Self {
        Self {
            kind,
            preceded_by: None,
        }
    }
}

/// Exclusive upper bound of the positions on a page.
pub(crate) fn upper_bound(page: &PageRequest) -> (i64, String) {
    page.cursor.clone().unwrap_or((i64::MAX, String::new()))
}

/// Binds the parameters of an insert, which are the same for both databases.
macro_rules! bind_insert {
    ($sql:expr, $row:expr, $max:expr, $idempotency:expr, $event:expr) => {
        sqlx::query($sql)
            .bind($row.id.as_str())
            .bind($row.session.as_str())
            .bind($row.org.as_str())
            .bind(&$row.alias)
            .bind(&$row.template)
            .bind(encode(&$row.metadata))
            .bind(encode(&$row.limits))
            .bind(encode(&$row.network))
            .bind(encode(&$row.lifetime))
            .bind($row.created_at)
            .bind($max)
            .bind(encode(&$row.policy))
            .bind(encode(&$row.port_access))
            .bind($idempotency.map(|it| &it.key))
            .bind($idempotency.map(|it| &it.fingerprint))
            .bind($event.as_str())
            .bind(payload($row, $row.state))
            .bind(i64::from($row.durable))
    };
}

/// Binds the parameters of an update, which are the same for both databases. `$first` is the id and state of the event
/// before the event of the change.
macro_rules! bind_update {
    ($sql:expr, $row:expr, $kind:expr, $at:expr, $event:expr, $first:expr) => {
        sqlx::query($sql)
            .bind($row.id.as_str())
            .bind(encode(&$row.state))
            .bind($row.reason.as_ref().map(encode))
            .bind(&$row.error)
            .bind($row.started_at)
            .bind($row.end_at)
            .bind($row.time_left)
            .bind($row.stopped_at)
            .bind($row.deleted_at)
            .bind(&$row.alias)
            .bind(encode(&$row.metadata))
            .bind(encode(&$row.limits))
            .bind(encode(&$row.network))
            .bind(encode(&$row.lifetime))
            .bind(encode(&$row.policy))
            .bind(encode(&$row.port_access))
            .bind($event.as_str())
            .bind($row.org.as_str())
            .bind($kind)
            .bind(payload($row, $row.state))
            .bind($at)
            .bind($first.as_ref().map(|(id, _)| id.as_str()))
            .bind($first.as_ref().map(|(_, state)| state.name()))
            .bind($first.as_ref().map(|(_, state)| payload($row, *state)))
    };
}

impl Store {
    /// Inserts the row of a new sandbox and its idempotency key, unless its org already has `max` sandboxes.
    pub async fn insert_sandbox(
        &self,
        row: &SandboxRow,
        max: Option<u32>,
        idempotency: Option<&Idempotency>,
    ) -> Result<QuotaClaim> {
        let _time = self.time("add_sandbox");
        let event = EventId::random();
        let max = max.map(i64::from);
        let inserted = match &self.database {
            Database::Sqlite(database) => {
                let _writer = self.writer();
                let query = bind_insert!(INSERT, row, max, idempotency, &event);
                let inserted = database.execute_batch(query).await;
                inserted.map(|rows| rows.len())
            }
            Database::Postgres(database) => {
                let query = bind_insert!(INSERT_POSTGRES, row, max, idempotency, &event);
                let inserted = if max.is_some() {
                    self.insert_locked(&row.org, query).await?
                } else {
                    within_limit(query.execute(&database.pool)).await
                };
                inserted.map(|done| usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
            }
        };
        let inserted = match inserted {
            Ok(inserted) => inserted,
            Err(error) => {
                let is_key = self.is_idempotency_violation(&error, &row.org, idempotency);
                return Err(if is_key.await? {
                    Error::IdempotencyKeyTaken
                } else {
                    on_constraint_violation("the alias")(error)
                });
            }
        };
        if inserted == 0 {
            return Ok(QuotaClaim::Exceeded);
        }
        self.announce_events();
        Ok(QuotaClaim::Granted)
    }

    /// Executes an insert in a transaction that excludes other inserts of the org.
    async fn insert_locked(
        &self,
        org: &OrgId,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<sqlx::Result<PgQueryResult>> {
        let mut transaction = self.begin().await?;
        transaction.lock_org(org, OrgLock::Quota).await?;
        let inserted = match transaction.on() {
            On::Postgres(connection) => within_limit(query.execute(connection)).await,
            On::Sqlite(_) => unreachable!("the query is for PostgreSQL"),
        };
        if inserted.is_ok() {
            transaction.commit().await?;
        }
        Ok(inserted)
    }

    /// Inserts the row of a sandbox that exists in the runtime already.
    pub async fn adopt_sandbox(&self, row: &SandboxRow, at: i64) -> Result<()> {
        let _time = self.time("adopt_sandbox");
        let mut transaction = self.begin().await?;
        execute!(
            transaction.on(),
            ADOPT,
            row.id.as_str(),
            row.session.as_str(),
            row.org.as_str(),
            &row.template,
            encode(&row.state),
            row.reason.as_ref().map(encode),
            encode(&row.metadata),
            encode(&row.limits),
            encode(&row.network),
            encode(&row.lifetime),
            encode(&row.policy),
            encode(&row.port_access),
            i64::from(row.durable),
            row.created_at,
            row.started_at,
            row.end_at,
            row.stopped_at
        )?;
        let payload = event_data(row, row.state);
        add_event(&mut transaction, row, row.state.name(), &payload, at).await?;
        transaction.commit().await?;
        self.announce_events();
        Ok(())
    }

    /// Finds a row by sandbox id, deleted or not.
    pub(crate) async fn sandbox_by_id(&self, id: &str) -> Result<Option<SandboxRow>> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM sandboxes WHERE id = $1"));
        let row = fetch_optional!(self.reader(), Row, sql, id)?;
        row.map(SandboxRow::try_from).transpose()
    }

    /// Deletes the row of a create that was never acknowledged, with its idempotency key. The id may be used again: it
    /// can belong to a warm sandbox that is still in the pool.
    pub async fn discard_create(&self, row: &SandboxRow, at: i64) -> Result<()> {
        let _time = self.time("unmake");
        let mut transaction = self.begin().await?;
        for statement in [DELETE_IDEMPOTENCY, DELETE_CREATING] {
            execute!(transaction.on(), statement, row.id.as_str())?;
        }
        let payload = event_data(row, row.state);
        add_event(&mut transaction, row, "deleted", &payload, at).await?;
        transaction.commit().await?;
        self.announce_events();
        Ok(())
    }

    /// Whether the row of a sandbox is marked as deleted. False if there is no row.
    pub async fn is_deleted(&self, id: &SandboxId) -> Result<bool> {
        let _time = self.time("deleted");
        let count = fetch_one!(self.reader(), (i64,), IS_DELETED, id.as_str())?;
        Ok(count.0 > 0)
    }

    /// Returns the session of a sandbox, deleted or not. `None` if there is no row.
    pub async fn session_of(&self, id: &SandboxId) -> Result<Option<SessionId>> {
        let _time = self.time("session_of");
        let session = fetch_optional!(self.reader(), (String,), SESSION, id.as_str())?;
        session
            .map(|(session,)| decode_text(TABLE, session))
            .transpose()
    }

    /// Deletes up to `limit` rows of sandboxes that were deleted before a time. Returns their number.
    pub async fn prune_deleted(&self, before: i64, limit: u32) -> Result<u64> {
        let limit = i64::from(limit);
        Ok(execute!(self.writer().on(), PRUNE_DELETED, before, limit)?)
    }

    /// Finds a row of an org by session id or sandbox id, deleted or not.
    pub async fn session(&self, org: &OrgId, name: &str) -> Result<Option<SandboxRow>> {
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE org = $1 AND (session = $2 OR id = $2)"
        ));
        let row = fetch_optional!(self.reader(), Row, sql, org.as_str(), name)?;
        row.map(SandboxRow::try_from).transpose()
    }

    /// Finds the row of a sandbox that is not deleted, by id or alias in an org.
    pub async fn sandbox(&self, org: &OrgId, name: &str) -> Result<Option<SandboxRow>> {
        let _time = self.time("sandbox");
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE org = $1 AND deleted_at IS NULL AND (id = $2 OR alias = $2)"
        ));
        let row = fetch_optional!(self.reader(), Row, sql, org.as_str(), name)?;
        row.map(SandboxRow::try_from).transpose()
    }

    /// Returns the rows of all sandboxes that are not deleted.
    pub async fn active_sandboxes(&self) -> Result<Vec<SandboxRow>> {
        let _time = self.time("living");
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE deleted_at IS NULL"
        ));
        let rows = fetch_all!(self.reader(), Row, sql)?;
        rows.into_iter().map(SandboxRow::try_from).collect()
    }

    /// Returns a page of sandboxes of an org, newest first. `include_deleted` adds deleted ones; `state` restricts the
    /// result to one state.
    pub async fn sandboxes(
        &self,
        org: &OrgId,
        include_deleted: bool,
        state: Option<SandboxState>,
        page: &PageRequest,
    ) -> Result<Vec<SandboxRow>> {
        let _time = self.time("sandboxes");
        let (at, id) = upper_bound(page);
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE org = $1 AND (CAST($2 AS BOOLEAN) OR deleted_at IS NULL) \
             AND (CAST($3 AS TEXT) IS NULL OR state = $3) AND (created_at < $4 OR (created_at = $4 AND id < $5)) \
             ORDER BY created_at DESC, id DESC LIMIT $6"
        ));
        let rows = fetch_all!(
            self.reader(),
            Row,
            sql,
            org.as_str(),
            include_deleted,
            state.map(SandboxState::name),
            at,
            id,
            i64::from(page.limit)
        )?;
        rows.into_iter().map(SandboxRow::try_from).collect()
    }

    /// Updates all mutable columns of a row and inserts the event of the change.
    pub async fn update_sandbox(
        &self,
        row: &SandboxRow,
        event: impl Into<ChangeEvent>,
        at: i64,
    ) -> Result<()> {
        let _time = self.time("update_sandbox");
        let ChangeEvent { kind, preceded_by } = event.into();
        let first = preceded_by.map(|state| (EventId::random(), state));
        let event = EventId::random();
        let updated = match &self.database {
            Database::Sqlite(database) => {
                let _writer = self.writer();
                let query = bind_update!(UPDATE, row, kind, at, &event, first);
                database.execute_batch(query).await.map(drop)
            }
            Database::Postgres(database) => {
                let query = bind_update!(UPDATE_POSTGRES, row, kind, at, &event, first);
                match within_limit(query.execute(&database.pool)).await {
                    Ok(done) if done.rows_affected() == 0 => Err(sqlx::Error::RowNotFound),
                    updated => updated.map(drop),
                }
            }
        };
        updated.map_err(on_constraint_violation("the alias"))?;
        self.announce_events();
        Ok(())
    }
}

/// Payload of an event about a sandbox in a state.
pub(crate) fn event_data(row: &SandboxRow, state: SandboxState) -> serde_json::Value {
    serde_json::json!({
        "state": state, "reason": row.reason, "error": row.error, "alias": row.alias,
        "templateID": row.template,
    })
}

fn payload(row: &SandboxRow, state: SandboxState) -> String {
    event_data(row, state).to_string()
}
