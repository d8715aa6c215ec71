//! The two databases, and macros that execute one statement on either.
//!
//! A statement has one text for both databases. The few that differ, and locks, are in [`crate::dialect`].

pub(crate) mod postgres;
pub(crate) mod sqlite;

use std::sync::Arc;

use sqlx::{PgConnection, PgPool, Postgres, Sqlite, SqliteConnection, SqlitePool};

use crate::{Result, Store};
use postgres::{PostgresDatabase, within_limit};
use sqlite::SqliteDatabase;

/// The database of a store.
#[derive(Debug, Clone)]
pub(crate) enum Database {
    Sqlite(SqliteDatabase),
    Postgres(Arc<PostgresDatabase>),
}

/// Executor of a statement: a pool or a connection.
pub(crate) enum On<S, P> {
    Sqlite(S),
    Postgres(P),
}

/// Executes a query, whose kind and row type are given, and collects its rows with a method of `sqlx`.
macro_rules! fetch {
    ($method:ident, $on:expr, $row:ty, $sql:expr $(, $value:expr)* $(,)?) => {
        match $on {
            $crate::database::On::Sqlite(on) => {
                sqlx::query_as::<sqlx::Sqlite, $row>($sql)$(.bind($value))*.$method(on).await
            }
            $crate::database::On::Postgres(on) => {
                let query = sqlx::query_as::<sqlx::Postgres, $row>($sql)$(.bind($value))*;
                $crate::database::postgres::within_limit(query.$method(on)).await
            }
        }
    };
}

/// Executes a query and returns all its rows.
macro_rules! fetch_all {
    ($($arguments:tt)*) => { $crate::database::fetch!(fetch_all, $($arguments)*) };
}

/// Executes a query and returns its first row, if there is one.
macro_rules! fetch_optional {
    ($($arguments:tt)*) => { $crate::database::fetch!(fetch_optional, $($arguments)*) };
}

/// Executes a query and returns its first row.
macro_rules! fetch_one {
    ($($arguments:tt)*) => { $crate::database::fetch!(fetch_one, $($arguments)*) };
}

/// Executes a statement and returns the number of changed rows.
macro_rules! execute {
    ($on:expr, $sql:expr $(, $value:expr)* $(,)?) => {
        match $on {
            $crate::database::On::Sqlite(on) => {
                let query = sqlx::query::<sqlx::Sqlite>($sql)$(.bind($value))*;
                query.execute(on).await.map(|done| done.rows_affected())
            }
            $crate::database::On::Postgres(on) => {
                let query = sqlx::query::<sqlx::Postgres>($sql)$(.bind($value))*;
                let done = $crate::database::postgres::within_limit(query.execute(on)).await;
                done.map(|done| done.rows_affected())
            }
        }
    };
}
pub(crate) use {execute, fetch, fetch_all, fetch_one, fetch_optional};

impl Store {
    /// Connections for reading.
    pub(crate) fn reader(&self) -> On<&SqlitePool, &PgPool> {
        match &self.database {
            Database::Sqlite(database) => On::Sqlite(&database.read),
            Database::Postgres(database) => On::Postgres(&database.pool),
        }
    }

    /// Connection for writing, for one statement. Dropping the guard schedules a sync of the commit.
    pub(crate) fn writer(&self) -> Writer<'_> {
        Writer(&self.database)
    }

    /// Begins a transaction that writes.
    pub(crate) async fn begin(&self) -> Result<Transaction<'_>> {
        let writer = self.writer();
        let transaction = match &self.database {
            // Takes the write lock at once: a transaction that first reads and then writes could not get it any more.
            Database::Sqlite(database) => {
                On::Sqlite(database.write.begin_with("BEGIN IMMEDIATE").await?)
            }
            Database::Postgres(database) => {
                On::Postgres(within_limit(database.pool.begin()).await?)
            }
        };
        Ok(Transaction {
            transaction,
            _writer: writer,
        })
    }

    /// Reports that events were committed.
    pub(crate) fn announce_events(&self) {
        match &self.database {
            Database::Sqlite(_) => {
                self.changes.send_replace(());
            }
            // Readers see the events when they have a number.
            Database::Postgres(database) => database.numbering.note(),
        }
    }
}

/// See [`Store::writer`]. Schedules a sync even if the caller was cancelled, because it may have committed.
pub(crate) struct Writer<'a>(&'a Database);

impl Writer<'_> {
    pub(crate) fn on(&self) -> On<&SqlitePool, &PgPool> {
        match self.0 {
            Database::Sqlite(database) => On::Sqlite(&database.write),
            Database::Postgres(database) => On::Postgres(&database.pool),
        }
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        match self.0 {
            Database::Sqlite(database) => database.committed.note(),
            // A commit of PostgreSQL is durable.
            Database::Postgres(_) => {}
        }
    }
}

/// A transaction. Rolled back when dropped without a commit.
pub(crate) struct Transaction<'a> {
    transaction: On<sqlx::Transaction<'static, Sqlite>, sqlx::Transaction<'static, Postgres>>,
    // Dropped after the transaction.
    _writer: Writer<'a>,
}

impl Transaction<'_> {
    pub(crate) fn on(&mut self) -> On<&mut SqliteConnection, &mut PgConnection> {
        match &mut self.transaction {
            On::Sqlite(transaction) => On::Sqlite(&mut **transaction),
            On::Postgres(transaction) => On::Postgres(&mut **transaction),
        }
    }

    pub(crate) async fn commit(self) -> Result<()> {
        match self.transaction {
            On::Sqlite(transaction) => transaction.commit().await?,
            On::Postgres(transaction) => within_limit(transaction.commit()).await?,
        }
        Ok(())
    }
}
