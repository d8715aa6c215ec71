//! Identity of a database: the instance that it belongs to.
//!
//! [`inspect`] reads the identity without changing the file. [`Store::claim_instance`] records it once the server
//! accepts the database.

use std::collections::HashSet;
use std::path::Path;

use atoll_model::InstanceId;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, PgConnection};

use crate::clock::ClockRecord;
use crate::database::sqlite::MIGRATOR;
use crate::database::{execute, fetch_one, postgres};
use crate::{Error, PostgresUrl, Result, Store, decode_text};

/// Largest file that is checked completely. Of a larger one the tables are left out that only the history is read from.
const MAX_CHECKED_BYTES: u64 = 256 << 20;
const HISTORY: [&str; 2] = ["commands", "events"];

const TABLES: &str = "SELECT name FROM sqlite_master WHERE type = 'table'";
const VERSION: &str = "SELECT COALESCE(MAX(version), 0) FROM _sqlx_migrations";
const SANDBOXES: &str = "SELECT id FROM sandboxes";
const READ: &str = "SELECT id FROM instance";
const CLAIM: &str = "INSERT INTO instance (one, id) VALUES (1, $1) ON CONFLICT (one) DO NOTHING";

/// Result of [`inspect`] and [`inspect_postgres`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseFile {
    /// There is no file.
    Missing,
    /// A database without tables.
    Empty,
    /// The database of a server of this version or an older one.
    Database(Identity),
}

/// Identity of a database. Databases of old versions have neither instance nor clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Id of the instance that the database belongs to.
    pub instance: Option<InstanceId>,
    /// The last recorded time.
    pub clock: Option<ClockRecord>,
    /// Ids of all sandboxes that have a row, deleted ones too.
    pub sandboxes: HashSet<String>,
}

/// Reads the identity of a database without changing the file.
pub async fn inspect(path: &Path) -> Result<DatabaseFile> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(DatabaseFile::Missing);
        }
        Err(error) => return Err(sqlx::Error::Io(error).into()),
    };
    if !metadata.is_file() {
        return Err(Error::NotAFile);
    }
    if metadata.len() == 0 {
        return Ok(DatabaseFile::Empty);
    }
    // Without a write-ahead log the file is complete, and SQLite need not create one to read it.
    let wal = crate::sync::wal_path(path);
    let complete = std::fs::metadata(wal).map_or(true, |wal| wal.len() == 0);
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .immutable(complete);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let is_large = metadata.len() > MAX_CHECKED_BYTES;
    let found = identify(&mut connection, is_large).await;
    let closed = connection.close().await;
    let found = found?;
    closed?;
    Ok(found)
}

/// Reads the identity of a PostgreSQL database, and checks that a server can use it. Changes nothing.
pub async fn inspect_postgres(url: &PostgresUrl) -> Result<DatabaseFile> {
    let mut connection = postgres::connect(&url.options()).await?;
    let found = identify_postgres(&mut connection).await;
    let _ = connection.close().await;
    found
}

async fn identify_postgres(connection: &mut PgConnection) -> Result<DatabaseFile> {
    if postgres::check(&mut *connection).await? == postgres::Schema::Empty {
        return Ok(DatabaseFile::Empty);
    }
    let ids: Vec<(String,)> = sqlx::query_as(SANDBOXES)
        .fetch_all(&mut *connection)
        .await?;
    let id: Option<(String,)> = sqlx::query_as(READ)
        .fetch_optional(&mut *connection)
        .await?;
    let clock = sqlx::query_as(crate::clock::READ);
    Ok(DatabaseFile::Database(Identity {
        instance: id.map(|(id,)| decode_text("instance", id)).transpose()?,
        clock: clock.fetch_optional(&mut *connection).await?,
        sandboxes: ids.into_iter().map(|(id,)| id).collect(),
    }))
}

async fn identify(connection: &mut SqliteConnection, is_large: bool) -> Result<DatabaseFile> {
    let tables: Vec<String> = sqlx::query_scalar(TABLES)
        .fetch_all(&mut *connection)
        .await?;
    let tables: HashSet<String> = tables.into_iter().collect();
    if tables.iter().all(|table| table == "_sqlx_migrations") {
        return Ok(DatabaseFile::Empty);
    }
    if !tables.contains("_sqlx_migrations") || !tables.contains("sandboxes") {
        return Err(Error::Corrupt {
            table: "_sqlx_migrations",
            reason: "it is not the database of a server".into(),
        });
    }
    let version: i64 = sqlx::query_scalar(VERSION)
        .fetch_one(&mut *connection)
        .await?;
    let known = MIGRATOR.iter().map(|migration| migration.version).max();
    if Some(version) > known {
        return Err(Error::Newer);
    }
    for table in &tables {
        if !(is_large && HISTORY.contains(&table.as_str())) {
            check_table(connection, table).await?;
        }
    }
    let ids = sqlx::query_scalar(SANDBOXES);
    let mut identity = Identity {
        sandboxes: ids.fetch_all(&mut *connection).await?.into_iter().collect(),
        ..Identity::default()
    };
    if tables.contains("instance") {
        let id = sqlx::query_scalar::<_, String>(READ);
        let id = id.fetch_optional(&mut *connection).await?;
        identity.instance = id.map(|id| decode_text("instance", id)).transpose()?;
    }
    if tables.contains("clock") {
        let record = sqlx::query_as(crate::clock::READ);
        identity.clock = record.fetch_optional(&mut *connection).await?;
    }
    Ok(DatabaseFile::Database(identity))
}

/// Looks for damaged pages of a table and of its indices.
async fn check_table(connection: &mut SqliteConnection, table: &str) -> Result<()> {
    let check = format!("PRAGMA quick_check(\"{table}\")");
    let found = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(check));
    let found = match found.fetch_all(&mut *connection).await.map_err(Error::from) {
        // Some damage fails the check itself.
        Err(error) if error.is_corrupt() => vec![error.to_string()],
        found => found?,
    };
    match found.first() {
        Some(first) if first != "ok" => Err(Error::Malformed(format!("{table}: {first}"))),
        _ => Ok(()),
    }
}

impl Store {
    /// Records the instance unless one is recorded already. Returns the recorded one.
    pub async fn claim_instance(&self, id: &InstanceId) -> Result<InstanceId> {
        execute!(self.writer().on(), CLAIM, id.as_str())?;
        let (recorded,) = fetch_one!(self.writer().on(), (String,), READ)?;
        decode_text("instance", recorded)
    }
}
