//! Backup of the database: a consistent copy, made while the server runs.

use std::path::Path;

use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::{Error, Result};

const VACUUM_INTO: &str = "VACUUM INTO $1";
const CHECK: &str = "PRAGMA quick_check(1)";
const COUNT: &str = "SELECT (SELECT COUNT(*) FROM orgs), (SELECT COUNT(*) FROM keys), \
     (SELECT COUNT(*) FROM sandboxes), (SELECT COUNT(*) FROM events)";

/// Row counts of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Number of orgs.
    pub orgs: i64,
    /// Number of keys, including revoked ones.
    pub keys: i64,
    /// Number of sandboxes, including deleted ones.
    pub sandboxes: i64,
    /// Number of events.
    pub events: i64,
}

/// Copies a database, which may be in use, to a new file and checks the integrity of the copy.
pub async fn copy(from: &Path, to: &Path) -> Result<Counts> {
    let options = SqliteConnectOptions::new().filename(from).read_only(true);
    let mut source = SqliteConnection::connect_with(&options).await?;
    let target = to.to_str().ok_or_else(|| Error::Corrupt {
        table: "backup",
        reason: format!("{} is not text", to.display()),
    })?;
    let copied = sqlx::query(VACUUM_INTO)
        .bind(target)
        .execute(&mut source)
        .await;
    source.close().await?;
    copied?;
    let options = SqliteConnectOptions::new().filename(to).read_only(true);
    let mut copy = SqliteConnection::connect_with(&options).await?;
    let reason: String = sqlx::query_scalar(CHECK).fetch_one(&mut copy).await?;
    if reason != "ok" {
        return Err(Error::Corrupt {
            table: "backup",
            reason,
        });
    }
    let counted: (i64, i64, i64, i64) = sqlx::query_as(COUNT).fetch_one(&mut copy).await?;
    copy.close().await?;
    let (orgs, keys, sandboxes, events) = counted;
    Ok(Counts {
        orgs,
        keys,
        sandboxes,
        events,
    })
}
