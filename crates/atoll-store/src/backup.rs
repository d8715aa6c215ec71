//! A copy of all rows as they are at one moment.

use std::path::Path;

use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::{Error, Result};

const INTO: &str = "VACUUM INTO $1";
const CHECK: &str = "PRAGMA quick_check(1)";
const COUNT: &str = "SELECT (SELECT COUNT(*) FROM orgs), (SELECT COUNT(*) FROM keys), \
     (SELECT COUNT(*) FROM sandboxes), (SELECT COUNT(*) FROM events)";

/// How many rows a copy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Orgs.
    pub orgs: i64,
    /// Keys, revoked ones included.
    pub keys: i64,
    /// Sandboxes, deleted ones included.
    pub sandboxes: i64,
    /// Events.
    pub events: i64,
}

/// Copies a database to a file that is not there yet, whoever writes to it meanwhile, and checks the copy.
pub async fn copy(from: &Path, to: &Path) -> Result<Counts> {
    let options = SqliteConnectOptions::new().filename(from).read_only(true);
    let mut source = SqliteConnection::connect_with(&options).await?;
    let target = to.to_str().ok_or_else(|| Error::Damaged {
        table: "backup",
        why: format!("{} is not text", to.display()),
    })?;
    let copied = sqlx::query(INTO).bind(target).execute(&mut source).await;
    source.close().await?;
    copied?;
    let options = SqliteConnectOptions::new().filename(to).read_only(true);
    let mut copy = SqliteConnection::connect_with(&options).await?;
    let why: String = sqlx::query_scalar(CHECK).fetch_one(&mut copy).await?;
    if why != "ok" {
        return Err(Error::Damaged {
            table: "backup",
            why,
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
