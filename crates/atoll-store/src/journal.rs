//! The journal of one sandbox: a SQLite file beside its record, with what was run in it, until somebody who keeps
//! history for longer has it. Whoever opens one closes it again soon: a connection is a thread.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::ExecId;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use crate::commands::{AT_ONCE, CommandRow, Row, insert};
use crate::sync::{log_of, sync};
use crate::{Error, Result, text};

const SCHEMA: &str = include_str!("journal.sql");
const VERSION: i64 = 1;
const UNSYNCED: &str = "SELECT id, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, \
     oom_killed, timed_out, output_bytes FROM commands WHERE synced = 0 ORDER BY started_at LIMIT $1";
// By id, whether they had ended: one that has ended meanwhile is to be taken once more.
const SYNCED: &str = "UPDATE commands SET synced = 1 FROM json_each($1) AS taken WHERE commands.id = taken.key \
     AND (commands.ended_at IS NULL OR taken.value)";
const PRUNE: &str = "DELETE FROM commands WHERE synced = 1 AND ended_at IS NOT NULL AND started_at < \
     (SELECT started_at FROM commands ORDER BY started_at DESC LIMIT 1 OFFSET $1)";
/// A journal that is open.
#[derive(Debug)]
pub struct Journal {
    connection: SqliteConnection,
    /// The write-ahead log.
    log: PathBuf,
}

impl Journal {
    /// How many rows it need not keep more of when somebody else has them.
    pub const KEPT: u32 = 1000;

    /// Opens the journal at a path, and makes it if there is none.
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A power cut leaves the file whole, with everything up to the last `sync`.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(5))
            // Rows are written once and read once: 256 KiB of pages do.
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
                return Err(Error::Damaged {
                    table: "commands",
                    why: format!("the journal is of version {other}"),
                });
            }
        }
        let log = log_of(path);
        Ok(Self { connection, log })
    }

    /// Writes commands down. One that is there already stays as it is, but that it may end. If it fails, some of them
    /// may be there: all can be said again.
    pub async fn write(&mut self, rows: &[CommandRow]) -> Result<()> {
        for rows in rows.chunks(AT_ONCE) {
            let mut statement = insert(None, rows, ", synced = 0");
            let query = statement.build().persistent(false);
            query.execute(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Brings everything that was written to the disk.
    pub async fn sync(&mut self) -> Result<()> {
        let log = self.log.clone();
        let synced = tokio::task::spawn_blocking(move || sync(&log)).await;
        let synced = synced.map_err(io::Error::other).and_then(|synced| synced);
        Ok(synced.map_err(sqlx::Error::Io)?)
    }

    /// The oldest of those that nobody else has as they are now.
    pub async fn unsynced(&mut self, most: u32) -> Result<Vec<CommandRow>> {
        let query = sqlx::query_as::<_, Row>(UNSYNCED).bind(i64::from(most));
        let rows = query.fetch_all(&mut self.connection).await?;
        rows.into_iter().map(CommandRow::try_from).collect()
    }

    /// Somebody else has these now, as they are here.
    pub async fn synced(&mut self, rows: &[CommandRow]) -> Result<()> {
        let taken = rows.iter().map(|row| (&row.id, row.ended.is_some()));
        let taken: HashMap<&ExecId, bool> = taken.collect();
        let query = sqlx::query(SYNCED).bind(text(&taken));
        query.execute(&mut self.connection).await?;
        Ok(())
    }

    /// Forgets what somebody else has, but for the newest. It reads the whole file: for now and then.
    pub async fn prune(&mut self) -> Result<()> {
        let query = sqlx::query(PRUNE).bind(i64::from(Self::KEPT));
        query.execute(&mut self.connection).await?;
        Ok(())
    }

    /// Ends the connection; what was written is in the file.
    pub async fn close(self) -> Result<()> {
        Ok(self.connection.close().await?)
    }
}
