//! SQL persistence: the control plane's database and the journal of each sandbox.
//!
//! A row holds the desired state of a sandbox and is written before the runtime acts on it. The database is SQLite, with
//! one connection for writing and several for reading.
//!
//! All statements are valid in PostgreSQL too, with one exception: `Store::execute_batch` runs a transaction, from
//! `BEGIN IMMEDIATE` to `COMMIT`, as one text with shared parameters. PostgreSQL accepts no parameters in such a text; it
//! would need one round trip for each statement. Only the `sandboxes` module uses it.
//!
//! This crate contains no business rules: it does not check permissions, transitions or deadlines.

mod backup;
mod clock;
mod commands;
mod events;
mod idempotency;
mod instance;
mod journal;
mod keys;
mod orgs;
mod quota;
mod sandboxes;
mod sync;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{OperationTimers, Timer};
use prometheus_client::registry::Registry;
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{Sqlite, SqlitePool};
use sync::CommitSync;
use tokio::sync::watch;

pub use backup::{Counts, copy};
pub use clock::ClockRecord;
pub use instance::{DatabaseFile, Identity, inspect};
pub use journal::Journal;
pub use keys::NewKey;
pub use orgs::OrgRemoval;
pub use quota::QuotaClaim;
pub use sandboxes::{ChangeEvent, SandboxRow};

static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("migrations/sqlite");

// Result codes of SQLite: <https://sqlite.org/rescode.html>.
const SQLITE_ERROR: i32 = 1;
const SQLITE_CORRUPT: i32 = 11;
const SQLITE_FULL: i32 = 13;
const SQLITE_NOTADB: i32 = 26;

/// Failure of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be accessed, or a statement failed.
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    /// The schema cannot be migrated: the database is newer, or a migration differs.
    #[error("the database cannot be brought up to date")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row has content that this program does not write.
    #[error("a row of {table} is damaged: {reason}")]
    Corrupt {
        /// The table of the row.
        table: &'static str,
        /// Cause of the decoding error.
        reason: String,
    },
    /// Pages of the file are damaged.
    #[error("the database is damaged: {0}")]
    Malformed(String),
    /// The database was written by a newer version.
    #[error("the database was written by a newer version")]
    Newer,
    /// The path of the database is a directory or another kind of file.
    #[error("the database is not a regular file")]
    NotAFile,
    /// Another create with the same idempotency key exists. Whether its request was the same is not known yet.
    #[error("the idempotency key is taken")]
    IdempotencyKeyTaken,
    /// A unique constraint failed. The field names the conflicting value.
    #[error("{0} is taken")]
    AlreadyExists(&'static str),
    /// The org of a new row was removed.
    #[error("the org was removed")]
    OrgNotFound,
}

impl Error {
    /// Primary result code of SQLite.
    fn sqlite_code(&self) -> Option<i32> {
        let Self::Database(sqlx::Error::Database(error)) = self else {
            return None;
        };
        // The lower byte of an extended result code is the primary one.
        Some(error.code()?.parse::<i32>().ok()? & 0xff)
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.sqlite_code() == Some(SQLITE_FULL)
    }

    /// Whether the file's content is invalid, so that a retry would fail in the same way.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Malformed(_))
            || matches!(
                self.sqlite_code(),
                Some(SQLITE_ERROR | SQLITE_CORRUPT | SQLITE_NOTADB)
            )
    }
}

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The database of the control plane.
#[derive(Debug, Clone)]
pub struct Store {
    /// A single connection, because SQLite allows one writer at a time.
    write: SqlitePool,
    read: SqlitePool,
    /// Notified after each commit that added an event.
    changes: Arc<watch::Sender<()>>,
    operations: OperationTimers,
    committed: CommitSync,
}

impl Store {
    /// Opens the database at a path, creates it if necessary, and migrates its schema.
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // In WAL mode a crash of this process loses nothing. After a power failure the file is consistent and has
            // every commit that `sync` wrote to the disk.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(5))
            .foreign_keys(true);
        // A connection is a thread of this process and is checked when it returns to the pool: another check before use
        // would only wake it once more. All connections are opened now and kept, so that the store works when the
        // process is out of file descriptors.
        let pool = SqlitePoolOptions::new()
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None);
        let write = pool.clone().max_connections(1);
        let write = write.connect_with(options.clone()).await?;
        MIGRATOR.run(&write).await?;
        let read = pool.max_connections(4).min_connections(4);
        let read = read.connect_with(options.read_only(true)).await?;
        Ok(Self {
            write,
            read,
            changes: Arc::new(watch::Sender::new(())),
            operations: OperationTimers::default(),
            committed: CommitSync::open(path).await?,
        })
    }

    /// Registers the latency histograms of all operations.
    pub fn register(&self, registry: &mut Registry) {
        let help = "How long the store took for an operation, waiting for its turn included";
        self.operations
            .register(registry, "store_op_duration", help);
    }

    /// Age of the oldest commit that is not on the disk. Zero if there is none.
    pub fn oldest_unsynced(&self) -> Duration {
        self.committed.oldest()
    }

    /// Syncs everything that was committed before the call.
    pub async fn sync(&self) -> Result<()> {
        self.committed.sync_now().await
    }

    /// The writing connection, for one statement or transaction. Dropping the guard schedules a sync of the commit.
    fn writer(&self) -> WriteGuard<'_> {
        WriteGuard {
            pool: &self.write,
            committed: &self.committed,
        }
    }

    /// Starts a timer that records the duration of an operation when it is dropped. The name is a metric label.
    fn time(&self, operation: &'static str) -> Timer {
        self.operations.time(operation)
    }

    /// Executes a whole transaction, from `BEGIN` to `COMMIT`, in one round trip to the writer's thread, because a round
    /// trip for each statement takes longer than the statements. Returns the rows of all statements.
    async fn execute_batch(&self, statements: Statements<'_>) -> sqlx::Result<Vec<SqliteRow>> {
        let writer = self.writer();
        let mut transaction = TransactionGuard(Some(writer.acquire().await?));
        let Some(connection) = &mut transaction.0 else {
            return Ok(Vec::new());
        };
        let result = statements.fetch_all(&mut **connection).await;
        if result.is_ok()
            || sqlx::query("ROLLBACK")
                .execute(&mut **connection)
                .await
                .is_ok()
        {
            drop(transaction.0.take());
        }
        result
    }

    /// Closes all connections. All commits are in the database file and on the disk afterwards.
    pub async fn close(&self) {
        self.read.close().await;
        // Closing the last connection checkpoints the write-ahead log and syncs both files.
        self.write.close().await;
    }

    /// Subscribes to notifications about new events.
    pub fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Checks that the database can be read and locked for writing.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.read).await?;
        // Acquires the writer and SQLite's write lock, and rolls back.
        self.write.begin_with("BEGIN IMMEDIATE").await?;
        Ok(())
    }
}

/// See [`Store::writer`]. Schedules a sync even if the caller was cancelled, because it may have committed.
struct WriteGuard<'a> {
    pool: &'a SqlitePool,
    committed: &'a CommitSync,
}

impl std::ops::Deref for WriteGuard<'_> {
    type Target = SqlitePool;

    fn deref(&self) -> &SqlitePool {
        self.pool
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.committed.note();
    }
}

type Statements<'a> = Query<'a, Sqlite, SqliteArguments>;

/// Closes a connection whose transaction was neither committed nor rolled back, which rolls it back.
struct TransactionGuard(Option<PoolConnection<Sqlite>>);

impl Drop for TransactionGuard {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// Decodes a value that is stored as JSON.
fn decode_json<T: serde::de::DeserializeOwned>(table: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Corrupt {
        table,
        reason: error.to_string(),
    })
}

/// Decodes an id or an enum value that is stored as plain text.
fn decode_text<T: serde::de::DeserializeOwned>(table: &'static str, text: String) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(text)).map_err(|error| Error::Corrupt {
        table,
        reason: error.to_string(),
    })
}

/// Encodes a value: a string as plain text, any other value as JSON.
fn encode<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        // Cannot fail: stored types have string keys and no NaN.
        Err(_) => String::new(),
    }
}

/// Converts a violated unique constraint to [`Error::AlreadyExists`], and a violated foreign key, which only the org has,
/// to [`Error::OrgNotFound`].
fn on_constraint_violation(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| match &error {
        sqlx::Error::Database(error) if error.is_unique_violation() => Error::AlreadyExists(what),
        sqlx::Error::Database(error) if error.is_foreign_key_violation() => Error::OrgNotFound,
        _ => Error::Database(error),
    }
}
