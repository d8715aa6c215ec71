//! All SQL: the rows of the control plane, and the journal of each sandbox. A row says what should be, and is written
//! first.
//!
//! SQLite, with one connection that writes and some that read. The statements keep to what PostgreSQL understands too,
//! but for one thing: those that are all written or none go as one text from `BEGIN IMMEDIATE` to `COMMIT`, whose
//! parameters all of them share. PostgreSQL takes no parameters in such a text: there it is a transaction with a
//! trip for each. What knows of it is `Store::write_whole` and the texts that it is given, in `sandboxes` alone. No function
//! here contains a rule.

mod backup;
mod clock;
mod commands;
mod events;
mod instance;
mod journal;
mod keys;
mod orgs;
mod sandboxes;
mod sync;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Operations, Stopwatch};
use prometheus_client::registry::Registry;
use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{Sqlite, SqlitePool};
use sync::Committed;
use tokio::sync::watch;

pub use atoll_model::Again;
pub use backup::{Counts, copy};
pub use clock::ClockRecord;
pub use commands::{CommandKind, CommandRow};
pub use events::Event;
pub use instance::{Found, Identity, inspect};
pub use journal::Journal;
pub use keys::NewKey;
pub use orgs::OrgRemoval;
pub use sandboxes::{Claim, Happened, Page, SandboxRow};

static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("migrations/sqlite");

/// Why a row cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be reached, or is broken.
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    /// It was made by a newer version, or its history is another.
    #[error("the database cannot be brought up to date")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row is not what we write.
    #[error("a row of {table} is damaged: {why}")]
    Damaged {
        /// The table.
        table: &'static str,
        /// What is wrong.
        why: String,
    },
    /// It was written by a newer version.
    #[error("the database was written by a newer version")]
    Newer,
    /// There is a directory, or something else that is no regular file, at its path.
    #[error("the database is not a regular file")]
    NotAFile,
    /// A create was said by this key before, or is just being made.
    #[error("the idempotency key is taken")]
    Said,
    /// Another row has this already.
    #[error("{0} is taken")]
    Taken(&'static str),
    /// The org of a new row was removed.
    #[error("the org was removed")]
    OrgNotFound,
}

impl Error {
    /// SQLite's own number for what went wrong.
    fn number(&self) -> Option<i32> {
        let Self::Database(sqlx::Error::Database(told)) = self else {
            return None;
        };
        // The lower byte is the kind, the rest is more about it.
        Some(told.code()?.parse::<i32>().ok()? & 0xff)
    }

    /// There is no room on the disk.
    pub fn is_full(&self) -> bool {
        self.number() == Some(13)
    }

    /// What is in the file cannot be understood: another try would find the same.
    pub fn is_damage(&self) -> bool {
        // An error in a statement, a corrupt file, not a database.
        matches!(self, Self::Damaged { .. }) || matches!(self.number(), Some(1 | 11 | 26))
    }
}

/// A result of the store.
pub type Result<T> = std::result::Result<T, Error>;

/// The rows of a control plane.
#[derive(Debug, Clone)]
pub struct Store {
    /// One connection: a second writer would only wait.
    write: SqlitePool,
    read: SqlitePool,
    /// Something has happened.
    news: Arc<watch::Sender<()>>,
    operations: Operations,
    committed: Committed,
}

impl Store {
    /// Opens the database at a path, makes it if there is none, and brings it up to date.
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // With WAL a crash of ours loses nothing. After a power cut the file is whole, and has every commit that
            // `sync` brought to the disk.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(5))
            .foreign_keys(true);
        // A connection is a thread of ours, and tried when it is given back: asking it again whether it is there only
        // wakes it once more.
        // All are opened now and kept: a server that has no descriptors left reads and writes its records all the same.
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
            news: Arc::new(watch::Sender::new(())),
            operations: Operations::default(),
            committed: Committed::open(path).await?,
        })
    }

    /// Shows how long its operations take to whoever asks the registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "How long the store took for an operation, waiting for its turn included";
        self.operations
            .register(registry, "store_op_duration", help);
    }

    /// The age of the oldest commit that is not on the disk; zero if there is none.
    pub fn oldest_unsynced(&self) -> Duration {
        self.committed.oldest()
    }

    /// The connection that writes, for one statement or transaction. What is committed while this lives is synced soon
    /// after.
    fn writer(&self) -> Writing<'_> {
        Writing {
            pool: &self.write,
            committed: &self.committed,
        }
    }

    /// Measures one operation until what comes back is dropped.
    fn time(&self, operation: &'static str) -> Stopwatch {
        self.operations.time(operation)
    }

    /// Runs statements that are all written or none: from `BEGIN` to `COMMIT` in one trip to the writer's thread, because
    /// a trip for each takes longer than the work. What they return.
    async fn write_whole(&self, statements: Statements<'_>) -> sqlx::Result<Vec<SqliteRow>> {
        let writing = self.writer();
        let mut writer = Writer(Some(writing.acquire().await?));
        let Some(connection) = &mut writer.0 else {
            return Ok(Vec::new());
        };
        let done = statements.fetch_all(&mut **connection).await;
        if done.is_ok()
            || sqlx::query("ROLLBACK")
                .execute(&mut **connection)
                .await
                .is_ok()
        {
            drop(writer.0.take());
        }
        done
    }

    /// Ends all connections; what was written is in the file, and on the disk.
    pub async fn close(&self) {
        self.read.close().await;
        // The last connection brings the log into the database, and syncs both.
        self.write.close().await;
    }

    /// Wakes when something has happened.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// The database answers, to who reads and to who writes.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.read).await?;
        // Takes the one writer's turn and its lock, and leaves nothing.
        self.write.begin_with("BEGIN IMMEDIATE").await?;
        Ok(())
    }
}

/// See [`Store::writer`]. A caller who gives up on the way may have committed all the same.
struct Writing<'a> {
    pool: &'a SqlitePool,
    committed: &'a Committed,
}

impl std::ops::Deref for Writing<'_> {
    type Target = SqlitePool;

    fn deref(&self) -> &SqlitePool {
        self.pool
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.committed.note();
    }
}

type Statements<'a> = Query<'a, Sqlite, SqliteArguments>;

/// A connection in the middle of a transaction: if nobody takes it out again, it is closed, and what was begun on it is
/// undone.
struct Writer(Option<PoolConnection<Sqlite>>);

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// Reads a value that is kept as text.
fn parse<T: serde::de::DeserializeOwned>(table: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Damaged {
        table,
        why: error.to_string(),
    })
}

/// Reads an id, or a word of an enum, that is kept as bare text.
fn word<T: serde::de::DeserializeOwned>(table: &'static str, text: String) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(text)).map_err(|error| Error::Damaged {
        table,
        why: error.to_string(),
    })
}

/// Writes a value as text.
fn text<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        // Our own types have string keys and no floats that are not numbers.
        Err(_) => String::new(),
    }
}

/// Tells a value that is taken, and an org that was removed, from other failures. The only foreign keys are those of
/// the org.
fn taken(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| match &error {
        sqlx::Error::Database(told) if told.is_unique_violation() => Error::Taken(what),
        sqlx::Error::Database(told) if told.is_foreign_key_violation() => Error::OrgNotFound,
        _ => Error::Database(error),
    }
}
