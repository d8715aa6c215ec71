//! `atoll backup restore`: restores a backup into a data directory whose server is stopped.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_model::{Code, Error};
use atoll_store::{Counts, DatabaseFile, Identity};
use atoll_worker::instance::DataLock;
use clap::Args;

use super::super::local::Local;
use super::super::serve::database::{self, DATABASE};
use super::super::{block_on, print_line};
use super::{KEY, SIGNS, failed, not_copied};
use crate::config::Config;

/// Files of the data directory that a restore replaces.
const REPLACED: [&str; 5] = [DATABASE, "atoll.db-wal", "atoll.db-shm", KEY, SIGNS];

/// Restore a backup into a data directory. The server must be stopped.
#[derive(Debug, Args)]
#[command(
    after_help = "The files that it replaces are moved to replaced-N in the data directory. Sandboxes that are younger than the
backup are set aside at the next start, or adopted with atoll serve --adopt-orphans.

Example:
  atoll backup restore /backups/today && atoll serve"
)]
pub(super) struct Restore {
    /// The directory of the backup.
    #[arg(value_name = "DIR")]
    backup: PathBuf,
    /// The data directory [default: /var/lib/atoll, or `ATOLL_DATA_DIR`].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    local: Local,
}

impl Restore {
    pub(super) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        // A data directory is always on this machine.
        if self.data_dir.is_none() {
            self.local.require("backup restore", config)?;
        }
        let data = self.data_dir.as_ref().unwrap_or(&config.data);
        let backup = &self.backup;
        let identity = identity(backup)?;
        let _lock = DataLock::acquire(data)?;
        if let (Some(ours), Some(theirs)) = (database::instance_of(data), &identity.instance)
            && ours != *theirs
        {
            let message = format!(
                "the backup is of instance {theirs}, and {} belongs to instance {ours}",
                data.display()
            );
            return Err(Error::new(Code::Conflict, message)
                .remedy("restore it into a data directory of its own: --data-dir DIR"));
        }
        let names = [DATABASE, KEY, SIGNS];
        let present = |name: &&str| backup.join(name).exists();
        let names: Vec<&str> = names.into_iter().filter(present).collect();
        // Complete copies first, so that little can fail once the first file is moved away.
        let database = backup.join(DATABASE);
        let counts = copy_database(&database, &unfinished(data, DATABASE))?;
        for name in names.iter().filter(|name| **name != DATABASE) {
            copy(&backup.join(name), &unfinished(data, name))?;
        }
        let replaced = move_away(data, &names)?;
        for name in &names {
            let (from, to) = (unfinished(data, name), data.join(name));
            fs::rename(&from, &to).map_err(|error| failed("name", &to, &error))?;
        }
        let synced = File::open(data).and_then(|directory| directory.sync_all());
        synced.map_err(|error| failed("write", data, &error))?;
        print_line(&format!(
            "restored {}: {} sandboxes, {} orgs with {} keys",
            names.join(", "),
            counts.sandboxes,
            counts.orgs,
            counts.keys
        ));
        if let Some(replaced) = replaced {
            print_line(&format!("replaced {}", replaced.display()));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Instance and version of the database in a backup.
fn identity(backup: &Path) -> Result<Identity, Error> {
    let found = block_on(async {
        let found = atoll_store::inspect(&backup.join(DATABASE)).await;
        found.map_err(|error| {
            let message = format!("the backup {} cannot be used: {error}", backup.display());
            Error::new(Code::Conflict, message).remedy(match error {
                atoll_store::Error::Newer => {
                    "use the version of atoll that made it, or a newer one"
                }
                _ => "use another backup",
            })
        })
    });
    match found? {
        DatabaseFile::Database(identity) => Ok(identity),
        DatabaseFile::Missing | DatabaseFile::Empty => {
            let message = format!("{} is no backup: it has no database", backup.display());
            Err(Error::new(Code::NotFound, message)
                .remedy("name a directory that atoll backup has made"))
        }
    }
}

fn unfinished(data: &Path, name: &str) -> PathBuf {
    data.join(format!("{name}.restored"))
}

/// Copies the database, including its write-ahead log, and checks the copy.
fn copy_database(from: &Path, to: &Path) -> Result<Counts, Error> {
    // Left by an interrupted restore.
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", to, &error));
        }
        _ => {}
    }
    let counts = block_on(async {
        let copied = atoll_store::copy(from, to).await;
        copied.map_err(|error| not_copied(from, &error))
    })?;
    let synced = File::open(to).and_then(|file| {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.sync_all()
    });
    synced.map_err(|error| failed("write", to, &error))?;
    Ok(counts)
}

/// Copies a file with access for root only, and syncs it.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let mut source = File::open(from).map_err(|error| failed("read", from, &error))?;
    let target = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to);
    let copied = target.and_then(|mut target| {
        io::copy(&mut source, &mut target)?;
        target.sync_all()
    });
    copied.map_err(|error| failed("write", to, &error))
}

/// Moves the files to be replaced to a new directory and returns its path. The database's log is
/// always moved with it: it would damage another database.
fn move_away(data: &Path, names: &[&str]) -> Result<Option<PathBuf>, Error> {
    let replaces = |name: &&str| names.contains(name) || name.starts_with(DATABASE);
    let exists = |name: &&str| fs::symlink_metadata(data.join(name)).is_ok();
    let there: Vec<&str> = REPLACED
        .into_iter()
        .filter(replaces)
        .filter(exists)
        .collect();
    if there.is_empty() {
        return Ok(None);
    }
    let directory = new_directory(data)?;
    for name in there {
        let (from, to) = (data.join(name), directory.join(name));
        fs::rename(&from, &to).map_err(|error| failed("move", &from, &error))?;
    }
    Ok(Some(directory))
}

fn new_directory(data: &Path) -> Result<PathBuf, Error> {
    let mut number = 1;
    loop {
        let directory = data.join(format!("replaced-{number}"));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(failed("make", &directory, &error)),
        }
    }
}
