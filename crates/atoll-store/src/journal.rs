//! The journal of one sandbox: a SQLite file beside its record with commands that are not yet synced to the store.
//!
//! An open journal costs a thread, so callers close it soon.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::{CommandRow, ExecId};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use crate::commands::{ROWS_PER_STATEMENT, Row, insert};
use crate::sync::{sync, wal_path};
use crate::{Error, Result, encode};

const SCHEMA: &str = include_str!("journal.sql");
const VERSION: i64 = 1;
const UNSYNCED: &str = "SELECT id, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, \
     oom_killed, timed_out, output_bytes FROM commands WHERE synced = 0 ORDER BY started_at LIMIT $1";
// The parameter maps each id to whether it had ended: a command that ended since then stays unsynced.
const MARK_SYNCED: &str = "UPDATE commands SET synced = 1 FROM json_each($1) AS taken WHERE commands.id = taken.key \
     AND (commands.ended_at IS NULL OR taken.value)";
const PRUNE: &str = "DELETE FROM commands WHERE synced = 1 AND ended_at IS NOT NULL AND started_at < \
     (SELECT started_at FROM commands ORDER BY started_at DESC LIMIT 1 OFFSET $1)";

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    connection: SqliteConnection,
    /// Path of the write-ahead log.
    wal: PathBuf,
}

impl Journal {
    /// Number of synced rows that [`Journal::prune`] keeps.
    pub const ROWS_KEPT: u32 = 1000;

    /// Opens the journal at a path and creates it if necessary.
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // After a power failure the file is consistent and has everything up to the last `sync`.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(5))
            // Rows are written once and read once: a page cache of 256 KiB is enough.
            .pragma("cache_size", "-256");
        let mut connection = options.connect().await?;
        let version = sqlx::query_scalar::<_, i64>("PRAGMA user_version");
        match version.fetch_one(&mut connection).await? {
            0 => {
                let mut transaction = connection.begin().await?;
                sqlx::raw_sql(SCHEMA).execute(&mut *transaction).await?;
                transaction.commit().await?;
            }
            VERSION => {}
            other => {
                return Err(Error::Corrupt {
                    table: "commands",
                    reason: format!("unsupported journal version {other}"),
                });
            }
        }
        let wal = wal_path(path);
        Ok(Self { connection, wal })
    }

    /// Inserts commands and updates the end of existing ones. The call is idempotent: after a failure, which may leave
    /// some rows written, it can be repeated.
    pub async fn write(&mut self, rows: &[CommandRow]) -> Result<()> {
        for rows in rows.chunks(ROWS_PER_STATEMENT) {
            let mut statement = insert(None, rows, ", synced = 0");
            let query = statement.build().persistent(false);
            query.execute(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Syncs all written rows to the disk.
    pub async fn sync(&mut self) -> Result<()> {
        let wal = self.wal.clone();
        let synced = tokio::task::spawn_blocking(move || sync(&wal)).await;
        let synced = synced.map_err(io::Error::other).and_then(|synced| synced);
        Ok(synced.map_err(sqlx::Error::Io)?)
    }

    /// Returns up to `limit` rows that are not synced in their current form, oldest first.
    pub async fn unsynced(&mut self, limit: u32) -> Result<Vec<CommandRow>> {
        let query = sqlx::query_as::<_, Row>(UNSYNCED).bind(i64::from(limit));
        let rows = query.fetch_all(&mut self.connection).await?;
        rows.into_iter().map(CommandRow::try_from).collect()
    }

    /// Marks rows as synced in this form. A row that changed since it was read stays unsynced.
    pub async fn mark_synced(&mut self, rows: &[CommandRow]) -> Result<()> {
        let synced = rows.iter().map(|row| (&row.id, row.ended.is_some()));
        let synced: HashMap<&ExecId, bool> = synced.collect();
        let query = sqlx::query(MARK_SYNCED).bind(encode(&synced));
        query.execute(&mut self.connection).await?;
        Ok(())
    }

    /// Deletes synced rows except the newest. Reads the whole file, so it is for occasional use.
    pub async fn prune(&mut self) -> Result<()> {
        let query = sqlx::query(PRUNE).bind(i64::from(Self::ROWS_KEPT));
        query.execute(&mut self.connection).await?;
        Ok(())
    }

    /// Closes the connection.
    pub async fn close(self) -> Result<()> {
        Ok(self.connection.close().await?)
    }
}
