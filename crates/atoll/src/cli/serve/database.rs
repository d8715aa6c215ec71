//! Whether the database of a data directory belongs to it. Checked before anything is changed.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use atoll_model::{Code, Error, InstanceId, SandboxId, SandboxState};
use atoll_store::{DatabaseFile, InvalidUrl, PostgresUrl, Store, inspect, inspect_postgres};
use atoll_worker::instance;

/// File of the database in a data directory.
pub(crate) const DATABASE: &str = "atoll.db";
/// The instance that a data directory belongs to. The database records the same id.
pub(super) const INSTANCE: &str = "instance-id";

/// Handling of sandboxes that have no row in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// They are set aside, and a database that cannot contain them is rejected.
    Refuse,
    /// They are adopted, with any database.
    Adopt,
}

/// The instance id of a data directory. `None` if no server has recorded one.
pub(crate) fn instance_of(data: &Path) -> Option<InstanceId> {
    let text = std::fs::read_to_string(data.join(INSTANCE)).ok()?;
    text.trim().parse().ok()
}

/// Parses the URL of a PostgreSQL database.
pub(crate) fn parse_url(text: &str) -> Result<PostgresUrl, Error> {
    text.parse().map_err(|error: InvalidUrl| {
        Error::invalid(
            "database-url",
            format!("the database URL is not valid: {error}"),
            "postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full; special characters of the password as %XX",
        )
    })
}

/// Location of the database of a data directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Location<'a> {
    data: &'a Path,
    /// `None`: the file in the data directory.
    url: Option<&'a PostgresUrl>,
}

impl fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.url {
            None => write!(f, "{}", self.data.join(DATABASE).display()),
            Some(url) => write!(f, "{url}"),
        }
    }
}

impl<'a> Location<'a> {
    pub(crate) fn new(data: &'a Path, url: Option<&'a PostgresUrl>) -> Self {
        Self { data, url }
    }

    pub(super) async fn open(self) -> atoll_store::Result<Store> {
        match self.url {
            None => Store::open(&self.data.join(DATABASE)).await,
            Some(url) => Store::connect(url).await,
        }
    }

    /// Refuses a database that is damaged or newer, and one that is missing, empty or another instance's although the
    /// data directory has been used. Changes nothing.
    pub(crate) async fn check(self, unknown: Unknown) -> Result<DatabaseFile, Error> {
        let found = match self.url {
            None => inspect(&self.data.join(DATABASE)).await,
            Some(url) => inspect_postgres(url).await,
        };
        let found = found.map_err(|error| self.unusable(&error))?;
        if unknown == Unknown::Adopt {
            return Ok(found);
        }
        let (recorded, sandboxes) = (instance_of(self.data), instance::recorded(self.data));
        let lost = |state| match (sandboxes.len(), &recorded) {
            (0, None) => Ok(()),
            (count, _) => Err(self.lost(state, count)),
        };
        match &found {
            DatabaseFile::Missing => lost("missing")?,
            DatabaseFile::Empty => lost("empty")?,
            DatabaseFile::Database(identity) => {
                if let (Some(ours), Some(theirs)) = (&recorded, &identity.instance)
                    && ours != theirs
                {
                    return Err(self.foreign(ours, theirs));
                }
                let has_row = |id: &SandboxId| identity.sandboxes.contains(id.as_str());
                if recorded.is_none() && !sandboxes.is_empty() && !sandboxes.iter().any(has_row) {
                    return Err(self.stranger(sandboxes.len()));
                }
            }
        }
        Ok(found)
    }

    /// Sandboxes whose create was acknowledged to a caller, according to the database.
    pub(super) async fn acknowledged(self, store: &Store) -> Result<HashSet<SandboxId>, Error> {
        let rows = store.active_sandboxes().await;
        let rows = rows.map_err(|error| self.unusable(&error))?.into_iter();
        let acknowledged = rows.filter(|row| match row.state {
            SandboxState::Creating => row.started_at.is_some(),
            SandboxState::Failed => false,
            _ => true,
        });
        Ok(acknowledged.map(|row| row.id).collect())
    }

    fn lost(self, state: &str, sandboxes: usize) -> Error {
        let message = match sandboxes {
            0 => format!(
                "the database {self} is {state}, and a server has used its data directory before"
            ),
            some => format!(
                "the database {self} is {state}, and its data directory has sandboxes: {some}"
            ),
        };
        Error::new(Code::Conflict, message).remedy(format!(
        "{}, or start once with --adopt-orphans, which makes a new database and adopts the sandboxes into its first org. \
         Nothing was changed",
        self.restore()
    ))
    }

    fn foreign(self, ours: &InstanceId, theirs: &InstanceId) -> Error {
        let message = format!(
            "the database {self} belongs to instance {theirs}, and its data directory to instance {ours}"
        );
        Error::new(Code::Conflict, message).remedy(format!(
        "put the right one back, {}, or start once with --adopt-orphans, which goes on with this database and adopts \
         the sandboxes that it does not know. Nothing was changed",
        self.restore()
    ))
    }

    fn stranger(self, sandboxes: usize) -> Error {
        let message = format!(
            "the database {self} has no row of any sandbox of its data directory, which has {sandboxes}"
        );
        Error::new(Code::Conflict, message).remedy(format!(
        "put the right one back, {}, or start once with --adopt-orphans, which goes on with this database and adopts \
         the sandboxes. Nothing was changed",
        self.restore()
    ))
    }

    /// Remedy for a database that was lost.
    fn restore(self) -> String {
        match (self.url, self.data.join("atoll.db").is_file()) {
            (None, _) => format!(
                "restore a backup (atoll backup restore BACKUP --data-dir {})",
                self.data.display()
            ),
            (Some(_), true) => format!(
                "copy the rows of the file (atoll store copy --from sqlite:{} --to URL)",
                self.data.join(DATABASE).display()
            ),
            (Some(_), false) => "restore a backup of it (pg_restore)".into(),
        }
    }

    /// Error and remedy for a database that cannot be opened.
    pub(crate) fn unusable(self, error: &atoll_store::Error) -> Error {
        match self.url {
            None => unusable_file(self.data, error),
            Some(url) => unusable_server(url, error),
        }
    }
}

/// Error and remedy for a file that cannot be opened.
fn unusable_file(data: &Path, error: &atoll_store::Error) -> Error {
    let path = data.join(DATABASE);
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let cause = cause.unwrap_or_default();
    let message = format!("the database {}: {error}{cause}", path.display());
    let (code, remedy) = match error {
        atoll_store::Error::Newer | atoll_store::Error::Migration(_) => (
            Code::Conflict,
            format!(
                "start the version of atoll that wrote it, or {}",
                restore(&path)
            ),
        ),
        error if error.is_disk_full() => (
            Code::DiskFull,
            "make room on the disk of the data directory".into(),
        ),
        error if error.is_corrupt() || matches!(error, atoll_store::Error::NotAFile) => (
            Code::Internal,
            format!(
                "{}; without a backup, move {DATABASE}, {DATABASE}-wal and {DATABASE}-shm away and start once with \
                 --adopt-orphans",
                restore(&path)
            ),
        ),
        _ => (
            Code::Internal,
            "check the disk and the permissions of the data directory".into(),
        ),
    };
    Error::new(code, message).remedy(format!("{remedy}. Nothing was changed"))
}

fn restore(path: &Path) -> String {
    format!(
        "restore a backup (atoll backup restore BACKUP --data-dir {})",
        path.parent().unwrap_or(path).display()
    )
}

/// Error and remedy for a PostgreSQL database that cannot be used.
pub(crate) fn unusable_server(url: &PostgresUrl, error: &atoll_store::Error) -> Error {
    use atoll_store::{ConnectProblem, Error as StoreError};
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let cause = cause.unwrap_or_default();
    let message = format!("{url}: {error}{cause}");
    let (code, remedy) = match error {
        StoreError::Newer | StoreError::Migration(_) => (
            Code::Conflict,
            "start the version of atoll that wrote it, or restore a backup (pg_restore)",
        ),
        StoreError::Foreign => (
            Code::Conflict,
            "name an empty database: CREATE DATABASE atoll",
        ),
        StoreError::Connect(problem, _) => match problem {
            ConnectProblem::Unreachable => (
                Code::Internal,
                "start PostgreSQL, and check host, port and firewall (pg_isready)",
            ),
            ConnectProblem::Credentials => (
                Code::Conflict,
                "check the user and the password of the URL, and pg_hba.conf of the server",
            ),
            ConnectProblem::NoDatabase => {
                (Code::NotFound, "create it: CREATE DATABASE name OWNER user")
            }
            ConnectProblem::ReadOnly => (
                Code::Conflict,
                "name the primary server, and a user without default_transaction_read_only",
            ),
            ConnectProblem::Privilege => (
                Code::Conflict,
                "make the user the owner of the database: ALTER DATABASE name OWNER TO user",
            ),
            ConnectProblem::TooManyConnections => (
                Code::Internal,
                "raise max_connections of the server; one atoll needs 17",
            ),
            ConnectProblem::Tls => (
                Code::Conflict,
                "check ssl of the server, or sslmode and sslrootcert of the URL",
            ),
            ConnectProblem::Encoding => (
                Code::Conflict,
                "create it with another encoding: CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0",
            ),
            ConnectProblem::Refused => (Code::Internal, "see the log of PostgreSQL"),
        },
        error if error.is_disk_full() => (Code::DiskFull, "make room on the disk of PostgreSQL"),
        _ => (Code::Internal, "see the log of PostgreSQL"),
    };
    Error::new(code, message).remedy(format!("{remedy}. Nothing was changed"))
}
