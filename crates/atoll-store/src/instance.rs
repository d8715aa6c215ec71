//! The instance that a database belongs to: read before anything is changed, and recorded once the database is accepted.

use std::collections::HashSet;
use std::path::Path;

use atoll_model::InstanceId;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::clock::ClockRecord;
use crate::{Error, MIGRATOR, Result, Store, word};

const TABLES: &str = "SELECT name FROM sqlite_master WHERE type = 'table'";
const VERSION: &str = "SELECT COALESCE(MAX(version), 0) FROM _sqlx_migrations";
const READ: &str = "SELECT id FROM instance";
const WRITE: &str = "INSERT INTO instance (one, id) VALUES (1, $1) ON CONFLICT (one) DO NOTHING";

/// The file at the path of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No file.
    Missing,
    /// A file without tables.
    Empty,
    /// The database of a server, of this version or an older one.
    Database(Identity),
}

/// Instance and version in a database. Databases of versions that did not record it have neither.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// The instance it belongs to.
    pub instance: Option<InstanceId>,
    /// The last recorded time.
    pub clock: Option<ClockRecord>,
}

/// Looks at a database without changing it.
pub async fn inspect(path: &Path) -> Result<Found> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Missing),
        Err(error) => return Err(sqlx::Error::Io(error).into()),
    };
    if !metadata.is_file() {
        return Err(Error::NotAFile);
    }
    if metadata.len() == 0 {
        return Ok(Found::Empty);
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // Without a log the file is complete, and SQLite need not create the log's files to read it.
    let complete = std::fs::metadata(log).map_or(true, |log| log.len() == 0);
    let options = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .immutable(complete);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let found = identify(&mut connection).await;
    let closed = connection.close().await;
    let found = found?;
    closed?;
    Ok(found)
}

async fn identify(connection: &mut SqliteConnection) -> Result<Found> {
    let tables: Vec<String> = sqlx::query_scalar(TABLES)
        .fetch_all(&mut *connection)
        .await?;
    let tables: HashSet<String> = tables.into_iter().collect();
    if tables.iter().all(|table| table == "_sqlx_migrations") {
        return Ok(Found::Empty);
    }
    if !tables.contains("_sqlx_migrations") || !tables.contains("sandboxes") {
        return Err(Error::Damaged {
            table: "_sqlx_migrations",
            why: "it is not the database of a server".into(),
        });
    }
    let version: i64 = sqlx::query_scalar(VERSION)
        .fetch_one(&mut *connection)
        .await?;
    let known = MIGRATOR.iter().map(|migration| migration.version).max();
    if Some(version) > known {
        return Err(Error::Newer);
    }
    let mut identity = Identity::default();
    if tables.contains("instance") {
        let id = sqlx::query_scalar::<_, String>(READ);
        let id = id.fetch_optional(&mut *connection).await?;
        identity.instance = id.map(|id| word("instance", id)).transpose()?;
    }
    if tables.contains("clock") {
        let record = sqlx::query_as(crate::clock::READ);
        identity.clock = record.fetch_optional(&mut *connection).await?;
    }
    Ok(Found::Database(identity))
}

impl Store {
    /// The instance that the rows belong to: the one that is recorded, or else this one, which is recorded then.
    pub async fn claim_instance(&self, id: &InstanceId) -> Result<InstanceId> {
        let query = sqlx::query(WRITE).bind(id.as_str());
        query.execute(&self.write).await?;
        let recorded = sqlx::query_scalar::<_, String>(READ);
        word("instance", recorded.fetch_one(&self.write).await?)
    }
}
