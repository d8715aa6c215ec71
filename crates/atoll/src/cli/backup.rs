//! `atoll backup`: copies the server's database and secrets to a directory while the server runs.

mod restore;

use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use atoll_model::{Bytes, Code, Error};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::local::Local;
use super::serve::database::DATABASE as RECORDS;
use super::{block_on, print_line};
use crate::config::Config;

const KEY: &str = "admin.key";
/// Secret of signed URLs: without it, URLs that were issued before the restore would be invalid.
const SIGNS: &str = "signing.key";

/// Back up the server's database and secrets: orgs, keys, sandbox definitions and history.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "The server may be running. Files of sandboxes and templates are not copied.

Examples:
  atoll backup /backups/today
  atoll backup restore /backups/today --data-dir /var/lib/other; atoll serve --data-dir /var/lib/other"
)]
pub(crate) struct Backup {
    #[command(subcommand)]
    command: Option<Command>,
    /// Directory to create.
    #[arg(value_name = "DIR", required = true)]
    directory: Option<PathBuf>,
    /// The server's data directory [default: /var/lib/atoll, or `ATOLL_DATA_DIR`].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    local: Local,
}

#[derive(Debug, Subcommand)]
enum Command {
    Restore(restore::Restore),
}

impl Backup {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match (&self.command, &self.directory) {
            (Some(Command::Restore(restore)), _) => restore.run(config),
            (None, Some(directory)) => self.make(directory, config),
            (None, None) => Err(Error::invalid("DIR", "no directory is named", "name one")),
        }
    }

    fn make(&self, directory: &Path, config: &Config) -> Result<ExitCode, Error> {
        // A data directory is always on this machine.
        if self.data_dir.is_none() {
            self.local.require("backup", config)?;
        }
        let data = self.data_dir.as_ref().unwrap_or(&config.data);
        if self.data_dir.is_none() && config.database_url.is_some() {
            let message = "`atoll backup` copies SQLite, and ATOLL_DATABASE_URL names PostgreSQL";
            return Err(Error::new(Code::Conflict, message)
                .remedy("use pg_dump, and copy admin.key and signing.key of the data directory"));
        }
        let records = data.join(RECORDS);
        if !records.is_file() {
            let message = format!("{} has no records of a server", data.display());
            return Err(Error::new(Code::NotFound, message)
                .remedy("name the server's data directory with --data-dir"));
        }
        let target =
            std::path::absolute(directory).map_err(|error| failed("find", directory, &error))?;
        if fs::symlink_metadata(&target).is_ok() {
            return Err(already_exists(&target));
        }
        let new = Unfinished::make(&target)?;
        let bar = if io::stderr().is_terminal() {
            ProgressBar::new_spinner().with_message(format!("copying {}", records.display()))
        } else {
            ProgressBar::hidden()
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        let copy = new.path.join(RECORDS);
        let copied = block_on(async {
            let copied = atoll_store::copy(&records, &copy).await;
            copied.map_err(|error| not_copied(&records, &error))
        });
        bar.finish_and_clear();
        let counts = copied?;
        let has_key = copy_key(&data.join(KEY), &new.path.join(KEY))?;
        copy_key(&data.join(SIGNS), &new.path.join(SIGNS))?;
        let size = fs::metadata(&copy).map_err(|error| failed("look at", &copy, &error))?;
        new.finish(&target)?;
        print_line(&format!("backup   {}", target.display()));
        print_line(&format!(
            "records  {}: {} sandboxes with {} events, {} orgs with {} keys",
            Bytes(size.len()),
            counts.sandboxes,
            counts.events,
            counts.orgs,
            counts.keys,
        ));
        if has_key {
            print_line("key      admin.key");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// An unfinished backup under a temporary name, which is removed when dropped.
#[derive(Debug)]
struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// Creates the directory next to the target, with access for root only because it contains
    /// keys.
    fn make(target: &Path) -> Result<Self, Error> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.new-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| failed("make", &path, &error))?;
        Ok(Self { path })
    }

    /// Syncs all files, then renames the directory to its final name.
    fn finish(self, target: &Path) -> Result<(), Error> {
        let sync = |path: &Path| {
            let synced = File::open(path).and_then(|file| file.sync_all());
            synced.map_err(|error| failed("write", path, &error))
        };
        let entries = fs::read_dir(&self.path);
        for entry in entries.map_err(|error| failed("read", &self.path, &error))? {
            sync(
                &entry
                    .map_err(|error| failed("read", &self.path, &error))?
                    .path(),
            )?;
        }
        sync(&self.path)?;
        renameat_with(CWD, &self.path, CWD, target, RenameFlags::NOREPLACE).map_err(|error| {
            match error {
                rustix::io::Errno::EXIST => already_exists(target),
                error => failed("name", target, &error.into()),
            }
        })?;
        target.parent().map_or(Ok(()), sync)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A finished backup has been renamed.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Copies the file of a key, if it exists.
fn copy_key(from: &Path, to: &Path) -> Result<bool, Error> {
    let mut source = match File::open(from) {
        Ok(source) => source,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed("read", from, &error)),
    };
    let target = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to);
    let copied = target.and_then(|mut target| io::copy(&mut source, &mut target));
    copied.map_err(|error| failed("write", to, &error))?;
    Ok(true)
}

fn already_exists(target: &Path) -> Error {
    Error::new(
        Code::Conflict,
        format!("{} is there already", target.display()),
    )
    .remedy("name a directory that is not there: a backup never writes over anything")
}

fn not_copied(records: &Path, error: &atoll_store::Error) -> Error {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let cause = cause.unwrap_or_default();
    Error::new(
        Code::Internal,
        format!("cannot copy {}: {error}: {cause}", records.display()),
    )
    .remedy("see whether there is space for it")
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::StorageFull => Code::DiskFull,
        io::ErrorKind::NotFound => Code::NotFound,
        _ => Code::Internal,
    };
    Error::new(code, format!("cannot {what} {}: {error}", path.display()))
}
