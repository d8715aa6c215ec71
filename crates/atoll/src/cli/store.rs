//! `atoll store`: the database of a server with PostgreSQL.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_model::{Code, Error};
use atoll_store::{DatabaseFile, DatabaseUrl, PostgresUrl, Store as Database, TransferProgress};
use atoll_worker::instance::DataLock;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use super::serve::database::{DATABASE, parse_url, unusable_server};
use super::{block_on, eprint_line, print_line};
use crate::config::Config;

/// Manage the database of a server: migrate, check, or copy it to PostgreSQL.
#[derive(Debug, Subcommand)]
pub(crate) enum Store {
    /// Create or update the tables of a PostgreSQL database.
    #[command(after_help = "`atoll serve` does the same when it starts.

Example:
  atoll store migrate --database-url postgres://atoll@localhost/atoll")]
    Migrate(Target),
    /// Check that a server can use a PostgreSQL database, and change nothing.
    #[command(after_help = "Example:
  atoll store check --database-url postgres://atoll@localhost/atoll")]
    Check(Target),
    Copy(Copy),
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The PostgreSQL database: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full`
    /// [default: `ATOLL_DATABASE_URL`].
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
}

/// Copy the database of a data directory to PostgreSQL, and compare both.
#[derive(Debug, Args)]
#[command(
    after_help = "No server may use the source. A repeated copy changes only rows that differ.

Example:
  atoll store copy --from sqlite:/var/lib/atoll/atoll.db --to postgres://atoll@localhost/atoll"
)]
pub(crate) struct Copy {
    /// SQLite file of a data directory: sqlite:PATH [default: that of the data directory].
    #[arg(long, value_name = "sqlite:PATH")]
    from: Option<String>,
    /// PostgreSQL database, empty or an earlier copy [default: `ATOLL_DATABASE_URL`].
    #[arg(long, value_name = "URL")]
    to: Option<String>,
}

impl Store {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Migrate(target) => target.migrate(config),
            Self::Check(target) => target.check(config),
            Self::Copy(copy) => copy.run(config),
        }
    }
}

/// The URL that was given, else that of the environment.
fn url(given: Option<&String>, config: &Config) -> Result<PostgresUrl, Error> {
    let text = given.or(config.database_url.as_ref()).ok_or_else(|| {
        Error::invalid(
            "database-url",
            "no database is named",
            "give its URL, or set ATOLL_DATABASE_URL",
        )
    })?;
    parse_url(text)
}

impl Target {
    fn migrate(&self, config: &Config) -> Result<ExitCode, Error> {
        let url = url(self.database_url.as_ref(), config)?;
        block_on(async {
            let migrated = Database::migrate(&url).await;
            migrated.map_err(|error| unusable_server(&url, &error))
        })?;
        print_line(&format!("migrated  {url}"));
        Ok(ExitCode::SUCCESS)
    }

    fn check(&self, config: &Config) -> Result<ExitCode, Error> {
        let url = url(self.database_url.as_ref(), config)?;
        let found = block_on(async {
            let found = atoll_store::inspect_postgres(&url).await;
            found.map_err(|error| unusable_server(&url, &error))
        })?;
        print_line(&format!("database  {url}"));
        match found {
            DatabaseFile::Missing | DatabaseFile::Empty => {
                print_line(
                    "state     empty: `atoll serve` or `atoll store migrate` creates the tables",
                );
            }
            DatabaseFile::Database(identity) => {
                let instance = identity.instance.map(|id| id.to_string());
                let instance = instance.unwrap_or_else(|| "none yet".into());
                print_line(&format!("instance  {instance}"));
                print_line(&format!("sandboxes {}", identity.sandboxes.len()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Copy {
    fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let from = match &self.from {
            None => config.data.join(DATABASE),
            Some(text) => source(text)?,
        };
        let to = url(self.to.as_ref(), config)?;
        if !from.is_file() {
            let message = format!("{} is not a file", from.display());
            return Err(Error::new(Code::NotFound, message)
                .remedy("name the database of a data directory: --from sqlite:PATH"));
        }
        // A server holds this lock.
        let _lock = match from.parent() {
            Some(data) if from.file_name().is_some_and(|name| name == DATABASE) => {
                Some(DataLock::acquire(if data == Path::new("") {
                    Path::new(".")
                } else {
                    data
                })?)
            }
            _ => None,
        };
        let bar = Bar::new(&to);
        let copied = block_on(async {
            let copied = atoll_store::transfer(&from, &to, |progress| bar.show(progress)).await;
            copied.map_err(|error| not_copied(&from, &to, &error))
        });
        bar.0.finish_and_clear();
        for table in copied? {
            if table.rows > 0 {
                print_line(&format!(
                    "{:<12} {:>9} rows, {} changed, checksum {:016x}",
                    table.table, table.rows, table.changed, table.checksum
                ));
            }
        }
        print_line(&format!("copied   {} to {to}", from.display()));
        Ok(ExitCode::SUCCESS)
    }
}

fn source(text: &str) -> Result<PathBuf, Error> {
    match text.parse() {
        Ok(DatabaseUrl::Sqlite(path)) => Ok(path),
        _ => Err(Error::invalid(
            "from",
            "the source of a copy is a SQLite file",
            "give sqlite:PATH, or use pg_dump and pg_restore between PostgreSQL databases",
        )),
    }
}

/// Progress of a copy: a bar on a terminal, otherwise one line.
struct Bar(ProgressBar);

impl Bar {
    fn new(to: &PostgresUrl) -> Self {
        if !std::io::stderr().is_terminal() {
            eprint_line(&format!("atoll: copying to {to} …"));
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template(
            "{msg:12} {wide_bar:.cyan/dim} {percent}% {elapsed} left {eta}",
        );
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self(ProgressBar::new(0).with_style(style))
    }

    fn show(&self, progress: TransferProgress) {
        self.0.set_message(progress.table);
        self.0.set_length(progress.total);
        self.0.set_position(progress.done);
    }
}

fn not_copied(from: &Path, to: &PostgresUrl, error: &atoll_store::Error) -> Error {
    use atoll_store::Error as StoreError;
    let file = from.display();
    let (code, message, remedy) = match error {
        StoreError::Connect(..) | StoreError::Foreign => return unusable_server(to, error),
        StoreError::NotFound => (
            Code::NotFound,
            format!("{file} has no tables"),
            "name the database of a data directory",
        ),
        StoreError::Older => (
            Code::Conflict,
            format!("{file} was written by an older version"),
            "start this version of `atoll serve` once with its data directory",
        ),
        StoreError::Newer => (
            Code::Conflict,
            "the source or the target was written by a newer version".to_owned(),
            "use the version of atoll that wrote it",
        ),
        StoreError::OtherInstance => (
            Code::Conflict,
            format!("{to} belongs to another instance than {file}"),
            "name an empty database. Nothing was changed",
        ),
        StoreError::TargetUsed => (
            Code::Conflict,
            format!("a server used {to} later than {file}, and a copy would undo its changes"),
            "name an empty database. Nothing was changed",
        ),
        StoreError::Differs { .. } => (
            Code::Conflict,
            format!("{to}: {error}"),
            "copy to an empty database: rows that the source deleted since an earlier copy remain in the target",
        ),
        _ => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            let cause = cause.unwrap_or_default();
            (
                Code::Internal,
                format!("cannot copy {file} to {to}: {error}{cause}"),
                "repeat the command: it continues with the rows that are missing",
            )
        }
    };
    Error::new(code, message).remedy(remedy)
}
