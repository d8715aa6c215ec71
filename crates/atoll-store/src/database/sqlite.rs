//! SQLite: one connection for writing, several for reading.

use std::path::Path;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{Sqlite, SqlitePool};

use crate::Result;
use crate::sync::CommitSync;

pub(crate) static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("migrations/sqlite");

#[derive(Debug, Clone)]
pub(crate) struct SqliteDatabase {
    /// A single connection, because SQLite allows one writer at a time.
    pub(crate) write: SqlitePool,
    pub(crate) read: SqlitePool,
    pub(crate) committed: CommitSync,
}

pub(crate) type Statements<'a> = Query<'a, Sqlite, SqliteArguments>;

impl SqliteDatabase {
    /// Opens a file, creates it if necessary, and migrates its schema.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
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
            committed: CommitSync::open(path).await?,
        })
    }

    /// Executes a whole transaction, from `BEGIN` to `COMMIT`, in one round trip to the writer's thread, because a round
    /// trip for each statement takes longer than the statements. Returns the rows of all statements.
    pub(crate) async fn execute_batch(
        &self,
        statements: Statements<'_>,
    ) -> sqlx::Result<Vec<SqliteRow>> {
        let mut transaction = TransactionGuard(Some(self.write.acquire().await?));
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
}

/// Closes a connection whose transaction was neither committed nor rolled back, which rolls it back.
struct TransactionGuard(Option<PoolConnection<Sqlite>>);

impl Drop for TransactionGuard {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}
