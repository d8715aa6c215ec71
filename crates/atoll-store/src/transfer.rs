//! Copy of a SQLite database to PostgreSQL.
//!
//! Rows are copied in batches, each a transaction; a repeated copy changes only rows that differ. Afterwards the rows of
//! each table are counted, and a checksum of them, in the order of their key, is compared on both sides.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use futures_util::TryStreamExt as _;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, PgConnection, Row as _, SqliteConnection};
use tokio::sync::mpsc;

use crate::database::sqlite::MIGRATOR;
use crate::dialect::without_nul;
use crate::instance::{DatabaseFile, Identity, inspect, inspect_postgres};
use crate::{Error, PostgresUrl, Result};

/// Rows of one insert.
const BATCH: usize = 4000;

const VERSION: &str = "SELECT COALESCE(MAX(version), 0) FROM _sqlx_migrations";
const LAST_NUMBER: &str = "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'events'";
const SET_NUMBER: &str = "UPDATE event_numbers SET last = GREATEST(last, $1)";
const SET_SEQUENCE: &str = "SELECT setval(pg_get_serial_sequence('events', 'seq'), \
     GREATEST($1, (SELECT COALESCE(MAX(seq), 0) FROM events), 1))";

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
}
use Kind::{Number, Text};

/// A table, its key and its columns, in an order that foreign keys permit.
struct Table {
    name: &'static str,
    key: &'static str,
    columns: &'static [(&'static str, Kind)],
}

const TABLES: [Table; 10] = [
    Table {
        name: "orgs",
        key: "id",
        columns: &[
            ("id", Text),
            ("name", Text),
            ("max_sandboxes", Number),
            ("max_timeout", Number),
            ("created_at", Number),
        ],
    },
    Table {
        name: "keys",
        key: "id",
        columns: &[
            ("id", Text),
            ("org", Text),
            ("name", Text),
            ("hash", Text),
            ("prefix", Text),
            ("scope", Text),
            ("created_at", Number),
            ("expires_at", Number),
            ("last_used_at", Number),
            ("revoked_at", Number),
        ],
    },
    Table {
        name: "sandboxes",
        key: "id",
        columns: &[
            ("id", Text),
            ("session", Text),
            ("org", Text),
            ("alias", Text),
            ("template", Text),
            ("state", Text),
            ("reason", Text),
            ("error", Text),
            ("metadata", Text),
            ("limits", Text),
            ("network", Text),
            ("lifetime", Text),
            ("policy", Text),
            ("port_access", Text),
            ("durable", Number),
            ("created_at", Number),
            ("started_at", Number),
            ("end_at", Number),
            ("time_left", Number),
            ("stopped_at", Number),
            ("deleted_at", Number),
        ],
    },
    Table {
        name: "events",
        key: "number",
        columns: &[
            ("number", Number),
            ("id", Text),
            ("org", Text),
            ("sandbox", Text),
            ("kind", Text),
            ("payload", Text),
            ("at", Number),
        ],
    },
    Table {
        name: "idempotency",
        key: "org, key",
        columns: &[
            ("org", Text),
            ("key", Text),
            ("fingerprint", Text),
            ("sandbox", Text),
            ("created_at", Number),
        ],
    },
    Table {
        name: "commands",
        key: "id",
        columns: &[
            ("id", Text),
            ("session", Text),
            ("terminal", Number),
            ("command", Text),
            ("args", Text),
            ("cut", Number),
            ("cwd", Text),
            ("user_name", Text),
            ("tag", Text),
            ("started_at", Number),
            ("ended_at", Number),
            ("code", Number),
            ("signal", Number),
            ("oom_killed", Number),
            ("timed_out", Number),
            ("output_bytes", Number),
        ],
    },
    Table {
        name: "workers",
        key: "id",
        columns: &[
            ("id", Text),
            ("name", Text),
            ("address", Text),
            ("state", Text),
            ("capacity", Text),
            ("version", Text),
            ("registered_at", Number),
            ("last_seen_at", Number),
        ],
    },
    Table {
        name: "templates",
        key: "id",
        columns: &[
            ("id", Text),
            ("org", Text),
            ("name", Text),
            ("digest", Text),
            ("size", Number),
            ("created_at", Number),
            ("updated_at", Number),
        ],
    },
    Table {
        name: "clock",
        key: "one",
        columns: &[
            ("one", Number),
            ("at", Number),
            ("boottime", Number),
            ("boot", Text),
            ("difference", Number),
            ("held_until", Number),
        ],
    },
    Table {
        name: "instance",
        key: "one",
        columns: &[("one", Number), ("id", Text)],
    },
];

/// Progress of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferProgress {
    /// Table whose rows are copied or compared.
    pub table: &'static str,
    /// Rows of all tables that were copied or compared.
    pub done: u64,
    /// Rows to copy and to compare, on both sides.
    pub total: u64,
}

/// Result of the copy of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableCopy {
    /// Name of the table.
    pub table: &'static str,
    /// Number of its rows, on both sides.
    pub rows: u64,
    /// Rows that were inserted or changed.
    pub changed: u64,
    /// Checksum of all rows, on both sides.
    pub checksum: u64,
}

/// Values of a column in a batch.
enum Values {
    Text(Vec<Option<String>>),
    Number(Vec<Option<i64>>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Text(values) => values.len(),
            Self::Number(values) => values.len(),
        }
    }
}

impl Table {
    fn names(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }

    fn select(&self) -> String {
        let Self { name, key, .. } = self;
        format!("SELECT {} FROM {name} ORDER BY {key}", self.names())
    }

    /// Insert with one array for each column. Rows that exist are changed if they differ.
    fn upsert(&self) -> String {
        let Self { name, key, columns } = self;
        let names = self.names();
        let arrays: Vec<String> = columns
            .iter()
            .zip(1..)
            .map(|((_, kind), number)| match kind {
                Text => format!("${number}::text[]"),
                Number => format!("${number}::bigint[]"),
            })
            .collect();
        let arrays = arrays.join(", ");
        let all = |prefix: &str| {
            let names: Vec<String> = columns
                .iter()
                .map(|(name, _)| format!("{prefix}.{name}"))
                .collect();
            names.join(", ")
        };
        // The order of insertion of an event is its number.
        let (seq, value) = match *name {
            "events" => ("seq, ", "number, "),
            _ => ("", ""),
        };
        let (ours, new) = (all(name), all("excluded"));
        format!(
            "INSERT INTO {name} ({seq}{names}) SELECT {value}{names} FROM UNNEST({arrays}) AS new ({names}) \
             ON CONFLICT ({key}) DO UPDATE SET ({names}) = ROW ({new}) WHERE ({ours}) IS DISTINCT FROM ({new})"
        )
    }

    fn empty(&self) -> Vec<Values> {
        let empty = |(_, kind): &(&str, Kind)| match kind {
            Text => Values::Text(Vec::with_capacity(BATCH)),
            Number => Values::Number(Vec::with_capacity(BATCH)),
        };
        self.columns.iter().map(empty).collect()
    }
}

/// Fingerprint of rows in their order.
struct Checksum {
    rows: u64,
    hasher: DefaultHasher,
}

impl Checksum {
    fn new() -> Self {
        Self {
            rows: 0,
            hasher: DefaultHasher::new(),
        }
    }

    /// Number of rows and hash.
    fn finish(&self) -> (u64, u64) {
        (self.rows, self.hasher.finish())
    }
}

/// Appends a row to a batch and to a checksum.
macro_rules! take {
    ($row:expr, $batch:expr, $checksum:expr) => {
        for (index, values) in $batch.iter_mut().enumerate() {
            match values {
                Values::Text(values) => {
                    let value: Option<String> = $row.try_get(index)?;
                    let value = value.map(|text| without_nul(&text));
                    value.hash(&mut $checksum.hasher);
                    values.push(value);
                }
                Values::Number(values) => {
                    let value: Option<i64> = $row.try_get(index)?;
                    value.hash(&mut $checksum.hasher);
                    values.push(value);
                }
            }
        }
        $checksum.rows += 1;
    };
}

/// Reads a table of the source and sends its rows in batches.
async fn read(
    source: &mut SqliteConnection,
    table: &Table,
    batches: mpsc::Sender<Vec<Values>>,
) -> Result<Checksum> {
    let mut checksum = Checksum::new();
    let statement = sqlx::AssertSqlSafe(table.select());
    let mut rows = sqlx::query(statement).fetch(source);
    let mut batch = table.empty();
    while let Some(row) = rows.try_next().await? {
        take!(row, batch, checksum);
        if checksum.rows.is_multiple_of(BATCH as u64)
            && batches
                .send(std::mem::replace(&mut batch, table.empty()))
                .await
                .is_err()
        {
            // The writer has failed and reports it.
            return Ok(checksum);
        }
    }
    let _ = batches.send(batch).await;
    Ok(checksum)
}

/// Writes batches to a table of the target. Returns the number of changed rows.
async fn write(
    target: &mut PgConnection,
    table: &Table,
    mut batches: mpsc::Receiver<Vec<Values>>,
    mut report: impl FnMut(u64),
) -> Result<u64> {
    let statement = table.upsert();
    let mut changed = 0;
    while let Some(batch) = batches.recv().await {
        let rows = batch.first().map_or(0, Values::len);
        if rows == 0 {
            continue;
        }
        let mut query = sqlx::query(sqlx::AssertSqlSafe(statement.as_str()));
        for values in batch {
            query = match values {
                Values::Text(values) => query.bind(values),
                Values::Number(values) => query.bind(values),
            };
        }
        changed += query.execute(&mut *target).await?.rows_affected();
        report(rows as u64);
    }
    Ok(changed)
}

/// Checksum of a table of the target.
async fn verify(
    target: &mut PgConnection,
    table: &Table,
    mut report: impl FnMut(u64),
) -> Result<Checksum> {
    let mut checksum = Checksum::new();
    let statement = sqlx::AssertSqlSafe(table.select());
    let mut rows = sqlx::query(statement).fetch(target);
    let mut batch = table.empty();
    while let Some(row) = rows.try_next().await? {
        take!(row, batch, checksum);
        if checksum.rows.is_multiple_of(BATCH as u64) {
            batch = table.empty();
            report(BATCH as u64);
        }
    }
    report(checksum.rows % BATCH as u64);
    Ok(checksum)
}

/// Copies a SQLite database that no server uses to PostgreSQL, and compares the result. A repeated copy changes only
/// rows that differ. Fails without changes if the target belongs to another instance, or was used after the source.
pub async fn transfer(
    from: &Path,
    to: &PostgresUrl,
    mut progress: impl FnMut(TransferProgress),
) -> Result<Vec<TableCopy>> {
    let DatabaseFile::Database(ours) = inspect(from).await? else {
        return Err(Error::NotFound);
    };
    match inspect_postgres(to).await? {
        DatabaseFile::Database(theirs) => check_target(&ours, &theirs)?,
        DatabaseFile::Missing | DatabaseFile::Empty => {}
    }
    let options = SqliteConnectOptions::new().filename(from).read_only(true);
    let mut source = SqliteConnection::connect_with(&options).await?;
    let version: (i64,) = sqlx::query_as(VERSION).fetch_one(&mut source).await?;
    if Some(version.0) != MIGRATOR.iter().map(|migration| migration.version).max() {
        return Err(Error::Older);
    }
    crate::database::postgres::migrate(to).await?;
    // Only the last commit waits for the disk.
    let options = to.options().options([("synchronous_commit", "off")]);
    let mut target = crate::database::postgres::connect(&options).await?;

    let mut state = TransferProgress {
        table: "",
        done: 0,
        total: 0,
    };
    for table in &TABLES {
        let count = sqlx::AssertSqlSafe(format!("SELECT COUNT(*) FROM {}", table.name));
        let count: (i64,) = sqlx::query_as(count).fetch_one(&mut source).await?;
        state.total += 2 * count.0.unsigned_abs();
    }
    let mut copied = Vec::new();
    for table in &TABLES {
        state.table = table.name;
        let mut report = |rows| {
            state.done += rows;
            progress(state);
        };
        report(0);
        let (sender, receiver) = mpsc::channel(2);
        let (read, written) = tokio::join!(
            read(&mut source, table, sender),
            write(&mut target, table, receiver, &mut report)
        );
        let (changed, ours) = (written?, read?);
        let theirs = verify(&mut target, table, &mut report).await?;
        if ours.finish() != theirs.finish() {
            return Err(Error::Differs {
                table: table.name,
                ours: ours.rows,
                theirs: theirs.rows,
            });
        }
        let (rows, checksum) = ours.finish();
        copied.push(TableCopy {
            table: table.name,
            rows,
            changed,
            checksum,
        });
    }
    let last: Option<(i64,)> = sqlx::query_as(LAST_NUMBER)
        .fetch_optional(&mut source)
        .await?;
    let last = last.map_or(0, |(last,)| last);
    sqlx::query(SET_SEQUENCE)
        .bind(last)
        .execute(&mut target)
        .await?;
    // A commit that waits for the disk also syncs all commits before it.
    sqlx::query("SET synchronous_commit = on")
        .execute(&mut target)
        .await?;
    sqlx::query(SET_NUMBER)
        .bind(last)
        .execute(&mut target)
        .await?;
    target.close().await?;
    source.close().await?;
    Ok(copied)
}

/// Whether rows of the source may be written to a target that contains rows.
fn check_target(ours: &Identity, theirs: &Identity) -> Result<()> {
    if theirs.instance.is_some() && theirs.instance != ours.instance {
        return Err(Error::OtherInstance);
    }
    let time = |identity: &Identity| identity.clock.as_ref().map(|clock| clock.at);
    if time(theirs) > time(ours) {
        return Err(Error::TargetUsed);
    }
    Ok(())
}
