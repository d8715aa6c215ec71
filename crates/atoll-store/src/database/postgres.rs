//! PostgreSQL: connections, checks before the first use, and limits of time.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::numbering::Numbering;
use crate::{ConnectProblem, Error, PostgresUrl, Result};

pub(crate) static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("migrations/postgres");

/// Maximum of connections of one store, without the one that listens for events.
const MAX_CONNECTIONS: u32 = 16;
/// Time to get a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle time after which a connection is checked before its use.
const IDLE_BEFORE_CHECK: Duration = Duration::from_secs(1);
/// Time to connect before the first use.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time of one statement, with the time to get a connection. Also ends a statement on a connection that lost its network.
const STATEMENT_LIMIT: Duration = Duration::from_secs(10);
/// Limits that the server enforces. A lock is held no longer than a transaction that its client abandoned.
const SERVER_LIMITS: [(&str, &str); 3] = [
    ("statement_timeout", "8s"),
    ("lock_timeout", "5s"),
    ("idle_in_transaction_session_timeout", "10s"),
];

const STATE: &str = "SELECT current_setting('transaction_read_only') = 'on' OR pg_is_in_recovery(), \
     getdatabaseencoding() = 'UTF8', COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false)";
const TABLES: &str = "SELECT CAST(table_name AS TEXT) FROM information_schema.tables WHERE table_schema = current_schema()";
const VISIBLE_TABLES: &str =
    "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = current_schema()";
const VERSION: &str = "SELECT COALESCE(MAX(version), 0) FROM _sqlx_migrations WHERE success";
const CAN_WRITE: &str = "SELECT COALESCE(bool_and(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') \
     AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')), true) FROM pg_class AS c \
     JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r' \
     AND c.relname = ANY($1)";

/// Tables of the schema.
pub(crate) const OUR_TABLES: [&str; 11] = [
    "orgs",
    "keys",
    "sandboxes",
    "events",
    "event_numbers",
    "idempotency",
    "commands",
    "instance",
    "clock",
    "workers",
    "templates",
];

#[derive(Debug)]
pub(crate) struct PostgresDatabase {
    pub(crate) pool: PgPool,
    pub(crate) numbering: Numbering,
}

impl PostgresDatabase {
    /// Checks the database, migrates its schema and opens connections.
    pub(crate) async fn open(
        url: &PostgresUrl,
        changes: Arc<watch::Sender<()>>,
    ) -> Result<Arc<Self>> {
        migrate(url).await?;
        let limited = url.options().options(SERVER_LIMITS);
        let pool = PgPoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // A check costs a round trip: only connections that were idle for a while may have been closed unnoticed.
            .test_before_acquire(false)
            .before_acquire(|connection, idle| {
                Box::pin(async move {
                    if idle.idle_for > IDLE_BEFORE_CHECK {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_with(limited)
            .await
            .map_err(Error::connect)?;
        // Listening takes a connection for itself. It reconnects by itself, without a limit of time.
        let listener = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(url.options());
        let numbering = Numbering::start(pool.clone(), listener, changes);
        Ok(Arc::new(Self { pool, numbering }))
    }

    pub(crate) async fn close(&self) {
        self.numbering.stop();
        // A connection that lost its network would never be closed.
        let _ = timeout(ACQUIRE_TIMEOUT, self.pool.close()).await;
    }
}

/// Schema of a database that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Schema {
    Empty,
    /// It has tables of this version or of an older one.
    Present {
        is_current: bool,
    },
}

/// Connects once, within a limit of time.
pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection> {
    match timeout(CONNECT_TIMEOUT, options.connect()).await {
        Ok(connected) => connected.map_err(Error::connect),
        Err(_) => Err(Error::connect(timed_out())),
    }
}

/// Checks that a server can use a database. Changes nothing.
pub(crate) async fn check(connection: &mut PgConnection) -> Result<Schema> {
    let (is_read_only, is_utf8, may_create): (bool, bool, bool) =
        sqlx::query_as(STATE).fetch_one(&mut *connection).await?;
    let tables: Vec<(String,)> = sqlx::query_as(VISIBLE_TABLES)
        .fetch_all(&mut *connection)
        .await?;
    let has = |name: &str| tables.iter().any(|(table,)| table == name);
    let schema = if has("_sqlx_migrations") && has("sandboxes") {
        let accessible: Vec<(String,)> = sqlx::query_as(TABLES).fetch_all(&mut *connection).await?;
        let accessible = |name: &str| accessible.iter().any(|(table,)| table == name);
        if !accessible("_sqlx_migrations") {
            return Err(Error::Connect(ConnectProblem::Privilege, None));
        }
        let newest = MIGRATOR.iter().map(|migration| migration.version).max();
        let version: (i64,) = sqlx::query_as(VERSION)
            .fetch_one(&mut *connection)
            .await
            .map_err(Error::connect)?;
        if Some(version.0) > newest {
            return Err(Error::Newer);
        }
        Schema::Present {
            is_current: Some(version.0) == newest,
        }
    } else if has("_sqlx_migrations") && !is_only_migrations(connection).await?
        || OUR_TABLES.iter().any(|name| has(name))
    {
        return Err(Error::Foreign);
    } else {
        Schema::Empty
    };
    let problem = if is_read_only {
        Some(ConnectProblem::ReadOnly)
    } else if !is_utf8 {
        Some(ConnectProblem::Encoding)
    } else if schema != (Schema::Present { is_current: true }) && !may_create {
        Some(ConnectProblem::Privilege)
    } else {
        let names = OUR_TABLES.map(str::to_owned).to_vec();
        let (can_write,): (bool,) = sqlx::query_as(CAN_WRITE)
            .bind(names)
            .fetch_one(&mut *connection)
            .await?;
        (!can_write).then_some(ConnectProblem::Privilege)
    };
    match problem {
        Some(problem) => Err(Error::Connect(problem, None)),
        None => Ok(schema),
    }
}

/// Whether a migration was begun and never completed: the table of migrations is empty.
async fn is_only_migrations(connection: &mut PgConnection) -> Result<bool> {
    let (version,): (i64,) = sqlx::query_as(VERSION)
        .fetch_one(connection)
        .await
        .map_err(Error::connect)?;
    Ok(version == 0)
}

/// Migrates the schema. The migrator takes an advisory lock, so that several processes may start at once.
pub(crate) async fn migrate(url: &PostgresUrl) -> Result<()> {
    let mut connection = connect(&url.options()).await?;
    let schema = check(&mut connection).await;
    let _ = connection.close().await;
    if schema? != (Schema::Present { is_current: true }) {
        // Without limits of time: a migration may wait for another one, and may be long.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(url.options());
        let migrated = MIGRATOR.run(&pool).await;
        pool.close().await;
        migrated?;
    }
    Ok(())
}

/// Ends the wait for a statement after [`STATEMENT_LIMIT`]. Its connection is not reused before it is idle again.
pub(crate) async fn within_limit<T>(
    work: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    match timeout(STATEMENT_LIMIT, work).await {
        // The socket of a server that does not run is missing: for files this kind has another meaning.
        Ok(Err(sqlx::Error::Io(error))) => Err(sqlx::Error::Io(match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(io::ErrorKind::NotConnected, error),
            _ => error,
        })),
        Ok(result) => result,
        Err(_) => Err(timed_out()),
    }
}

fn timed_out() -> sqlx::Error {
    let message = "the database server did not answer in time";
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, message))
}
