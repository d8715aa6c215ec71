//! SQL persistence: the control plane's database and the journal of each sandbox.
//!
//! A row holds the desired state of a sandbox and is written before the runtime acts on it. The database is SQLite, with
//! one connection for writing and several for reading, or PostgreSQL. A statement has one text for both; `dialect`
//! contains the exceptions. A journal is always SQLite.
//!
//! Events of PostgreSQL get their sequence numbers after the commit: see `numbering`.
//!
//! This crate contains no business rules: it does not check permissions, transitions or deadlines.

mod backup;
mod clock;
mod commands;
mod database;
mod dialect;
mod error;
mod events;
mod idempotency;
mod instance;
mod journal;
mod keys;
mod numbering;
mod orgs;
mod quota;
mod sandboxes;
mod sync;
#[cfg(test)]
mod tests;
mod transfer;
mod url;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{OperationTimers, Timer};
use database::Database;
use database::postgres::{PostgresDatabase, within_limit};
use database::sqlite::SqliteDatabase;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

pub use backup::{Counts, copy};
pub use clock::ClockRecord;
pub(crate) use error::on_constraint_violation;
pub use error::{ConnectProblem, Error, Result};
pub use instance::{DatabaseFile, Identity, inspect, inspect_postgres};
pub use journal::Journal;
pub use keys::NewKey;
pub use orgs::OrgRemoval;
pub use quota::QuotaClaim;
pub use sandboxes::{ChangeEvent, SandboxRow};
pub use transfer::{TableCopy, TransferProgress, transfer};
pub use url::{DatabaseUrl, InvalidUrl, PostgresUrl};

/// The database of the control plane.
#[derive(Debug, Clone)]
pub struct Store {
    database: Database,
    /// Notified after events became visible to readers.
    changes: Arc<watch::Sender<()>>,
    operations: OperationTimers,
}

impl Store {
    /// Opens the SQLite database at a path, creates it if necessary, and migrates its schema.
    pub async fn open(path: &Path) -> Result<Self> {
        let database = Database::Sqlite(SqliteDatabase::open(path).await?);
        Ok(Self {
            database,
            changes: Arc::new(watch::Sender::new(())),
            operations: OperationTimers::default(),
        })
    }

    /// Opens a PostgreSQL database and migrates its schema. Nothing is changed if the database cannot be used.
    pub async fn connect(url: &PostgresUrl) -> Result<Self> {
        let changes = Arc::new(watch::Sender::new(()));
        let database = PostgresDatabase::open(url, Arc::clone(&changes)).await?;
        Ok(Self {
            database: Database::Postgres(database),
            changes,
            operations: OperationTimers::default(),
        })
    }

    /// Checks a PostgreSQL database and migrates its schema.
    pub async fn migrate(url: &PostgresUrl) -> Result<()> {
        database::postgres::migrate(url).await
    }

    /// Opens the database at a URL.
    pub async fn open_url(url: &DatabaseUrl) -> Result<Self> {
        match url {
            DatabaseUrl::Sqlite(path) => Self::open(path).await,
            DatabaseUrl::Postgres(url) => Self::connect(url).await,
        }
    }

    /// Registers the latency histograms of all operations.
    pub fn register(&self, registry: &mut Registry) {
        let help = "How long the store took for an operation, waiting for its turn included";
        self.operations
            .register(registry, "store_op_duration", help);
    }

    /// Age of the oldest commit that is not on the disk. Zero if there is none, as always with PostgreSQL.
    pub fn oldest_unsynced(&self) -> Duration {
        match &self.database {
            Database::Sqlite(database) => database.committed.oldest(),
            Database::Postgres(_) => Duration::ZERO,
        }
    }

    /// Syncs everything that was committed before the call.
    pub async fn sync(&self) -> Result<()> {
        match &self.database {
            Database::Sqlite(database) => database.committed.sync_now().await,
            Database::Postgres(_) => Ok(()),
        }
    }

    /// Starts a timer that records the duration of an operation when it is dropped. The name is a metric label.
    fn time(&self, operation: &'static str) -> Timer {
        self.operations.time(operation)
    }

    /// Closes all connections. All commits are in the database and on the disk afterwards.
    pub async fn close(&self) {
        match &self.database {
            Database::Sqlite(database) => {
                database.read.close().await;
                // Closing the last connection checkpoints the write-ahead log and syncs both files.
                database.write.close().await;
            }
            Database::Postgres(database) => database.close().await,
        }
    }

    /// Subscribes to notifications about new events, of other processes too.
    pub fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Checks that the database can be read and locked for writing.
    pub async fn ping(&self) -> Result<()> {
        match &self.database {
            Database::Sqlite(database) => {
                sqlx::query("SELECT 1").execute(&database.read).await?;
                // Acquires the writer and SQLite's write lock, and rolls back.
                database.write.begin_with("BEGIN IMMEDIATE").await?;
            }
            Database::Postgres(database) => {
                // Takes a transaction id, which a standby refuses, and writes nothing.
                let query = sqlx::query("SELECT pg_current_xact_id()");
                within_limit(query.execute(&database.pool)).await?;
            }
        }
        Ok(())
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
