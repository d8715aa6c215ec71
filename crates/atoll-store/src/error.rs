//! Errors of the store.

use std::io;

use sqlx::postgres::PgDatabaseError;
use sqlx::sqlite::SqliteError;

// Result codes of SQLite: <https://sqlite.org/rescode.html>.
const SQLITE_ERROR: i32 = 1;
const SQLITE_CORRUPT: i32 = 11;
const SQLITE_FULL: i32 = 13;
const SQLITE_NOTADB: i32 = 26;

// Codes of PostgreSQL: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
const PG_DISK_FULL: &str = "53100";
const PG_CORRUPT: [&str; 2] = ["XX001", "XX002"];
/// Insufficient resources, operator intervention and connection exceptions pass; so do deadlocks, lock timeouts and a
/// server that became a standby.
const PG_UNAVAILABLE_CLASSES: [&str; 3] = ["08", "53", "57"];
const PG_UNAVAILABLE: [&str; 4] = ["40001", "40P01", "55P03", "25006"];

/// Failure of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be accessed, or a statement failed.
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    /// The schema cannot be migrated: the database is newer, or a migration differs.
    #[error("the database cannot be brought up to date")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// PostgreSQL cannot be used as it is. Nothing was changed.
    #[error("{0}")]
    Connect(ConnectProblem, #[source] Option<sqlx::Error>),
    /// A row has content that this program does not write.
    #[error("a row of {table} is damaged: {reason}")]
    Corrupt {
        /// The table of the row.
        table: &'static str,
        /// Cause of the decoding error.
        reason: String,
    },
    /// Pages of the file are damaged.
    #[error("the database is damaged: {0}")]
    Malformed(String),
    /// The database was written by a newer version.
    #[error("the database was written by a newer version")]
    Newer,
    /// The path of the database is a directory or another kind of file.
    #[error("the database is not a regular file")]
    NotAFile,
    /// The schema of PostgreSQL has tables of another program with the names of ours.
    #[error("the database contains tables of another program")]
    Foreign,
    /// Another create with the same idempotency key exists. Whether its request was the same is not known yet.
    #[error("the idempotency key is taken")]
    IdempotencyKeyTaken,
    /// A unique constraint failed. The field names the conflicting value.
    #[error("{0} is taken")]
    AlreadyExists(&'static str),
    /// The org of a new row was removed.
    #[error("the org was removed")]
    OrgNotFound,
    /// There is no database to copy.
    #[error("there is no database")]
    NotFound,
    /// The schema of the database to copy is of an older version.
    #[error("the database was written by an older version")]
    Older,
    /// The target of a copy belongs to another instance.
    #[error("the target belongs to another instance")]
    OtherInstance,
    /// A server used the target of a copy later than the source.
    #[error("a server used the target after the source")]
    TargetUsed,
    /// Source and target of a copy differ.
    #[error("table {table} differs: {ours} rows in the source, {theirs} in the target")]
    Differs {
        /// The table.
        table: &'static str,
        /// Rows of the source.
        ours: u64,
        /// Rows of the target.
        theirs: u64,
    },
}

/// Reason why a PostgreSQL database cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectProblem {
    /// No server answers at the address.
    #[error("the database server cannot be reached")]
    Unreachable,
    /// The server rejects the user or the password.
    #[error("the database server rejects the user name or the password")]
    Credentials,
    /// The server has no database of this name.
    #[error("the database does not exist")]
    NoDatabase,
    /// Transactions of this user or of this server are read-only.
    #[error("the database is read-only")]
    ReadOnly,
    /// The user may not create tables in the schema, or may not write to the existing ones.
    #[error("the database user lacks privileges")]
    Privilege,
    /// All connections of the server are in use.
    #[error("the database server has no free connection")]
    TooManyConnections,
    /// The server has no TLS, or its certificate is not valid.
    #[error("the TLS connection to the database server failed")]
    Tls,
    /// The encoding of the database is not UTF8.
    #[error("the encoding of the database is not UTF8")]
    Encoding,
    /// Another failure.
    #[error("the database server refuses the connection")]
    Refused,
}

impl ConnectProblem {
    /// Classifies the failure of a connection attempt.
    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => Self::Unreachable,
            sqlx::Error::Tls(_) => Self::Tls,
            sqlx::Error::Database(error) => match error.code().as_deref() {
                Some("28000" | "28P01") => Self::Credentials,
                Some("3D000") => Self::NoDatabase,
                Some("42501") => Self::Privilege,
                Some("25006") => Self::ReadOnly,
                Some("53300") => Self::TooManyConnections,
                Some("57P03") => Self::Unreachable,
                _ => Self::Refused,
            },
            _ => Self::Refused,
        }
    }
}

impl Error {
    /// Converts the failure of a connection attempt.
    pub(crate) fn connect(error: sqlx::Error) -> Self {
        Self::Connect(ConnectProblem::of(&error), Some(error))
    }

    fn cause(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Database(error)
            | Self::Migration(
                sqlx::migrate::MigrateError::Execute(error)
                | sqlx::migrate::MigrateError::ExecuteMigration(error, _),
            ) => Some(error),
            Self::Connect(_, error) => error.as_ref(),
            _ => None,
        }
    }

    /// Primary result code of SQLite.
    fn sqlite_code(&self) -> Option<i32> {
        let sqlx::Error::Database(error) = self.cause()? else {
            return None;
        };
        error.try_downcast_ref::<SqliteError>()?;
        // The lower byte of an extended result code is the primary one.
        Some(error.code()?.parse::<i32>().ok()? & 0xff)
    }

    /// Code of PostgreSQL.
    fn postgres_code(&self) -> Option<&str> {
        let sqlx::Error::Database(error) = self.cause()? else {
            return None;
        };
        Some(error.try_downcast_ref::<PgDatabaseError>()?.code())
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.sqlite_code() == Some(SQLITE_FULL) || self.postgres_code() == Some(PG_DISK_FULL)
    }

    /// Whether the file's content is invalid, so that a retry would fail in the same way.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Malformed(_))
            || matches!(
                self.sqlite_code(),
                Some(SQLITE_ERROR | SQLITE_CORRUPT | SQLITE_NOTADB)
            )
            || self
                .postgres_code()
                .is_some_and(|code| PG_CORRUPT.contains(&code))
    }

    /// Whether the database cannot be used at the moment, so that a later retry can succeed: it cannot be reached, has no
    /// free connection, shuts down or answers too slowly. A write that failed so may have been committed.
    pub fn is_unavailable(&self) -> bool {
        if let Some(code) = self.postgres_code() {
            let class = PG_UNAVAILABLE_CLASSES
                .iter()
                .any(|class| code.starts_with(class));
            return (class && code != PG_DISK_FULL) || PG_UNAVAILABLE.contains(&code);
        }
        match self.cause() {
            Some(sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) => true,
            Some(sqlx::Error::Io(error)) => is_connection_loss(error),
            _ => false,
        }
    }
}

/// `ENFILE` and `EMFILE`: no file descriptor is left for a connection.
const OUT_OF_DESCRIPTORS: [i32; 2] = [23, 24];

/// Whether the error is about a connection and not about a file.
fn is_connection_loss(error: &io::Error) -> bool {
    let is_shortage = |code| OUT_OF_DESCRIPTORS.contains(&code);
    error.raw_os_error().is_some_and(is_shortage)
        || matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::NotConnected
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
                | io::ErrorKind::TimedOut
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::NetworkDown
        )
}

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Converts a violated unique constraint to [`Error::AlreadyExists`], and a violated foreign key, which only the org has,
/// to [`Error::OrgNotFound`].
pub(crate) fn on_constraint_violation(what: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |error| match &error {
        sqlx::Error::Database(error) if error.is_unique_violation() => Error::AlreadyExists(what),
        sqlx::Error::Database(error) if error.is_foreign_key_violation() => Error::OrgNotFound,
        _ => Error::Database(error),
    }
}
