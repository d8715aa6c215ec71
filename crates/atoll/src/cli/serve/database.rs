//! Whether the database of a data directory belongs to it. Checked before anything is changed.

use std::collections::HashSet;
use std::path::Path;

use atoll_model::{Code, Error, InstanceId, SandboxId, SandboxState};
use atoll_store::{DatabaseFile, Store, inspect};
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

/// Refuses a database that is damaged or newer, and one that is missing, empty or another instance's although the data
/// directory has been used. Changes nothing.
pub(crate) async fn check(data: &Path, unknown: Unknown) -> Result<DatabaseFile, Error> {
    let path = data.join(DATABASE);
    let found = inspect(&path).await;
    let found = found.map_err(|error| unusable(data, &error))?;
    if unknown == Unknown::Adopt {
        return Ok(found);
    }
    let (recorded, sandboxes) = (instance_of(data), instance::recorded(data));
    let lost = |state| match (sandboxes.len(), &recorded) {
        (0, None) => Ok(()),
        (count, _) => Err(lost(&path, state, count)),
    };
    match &found {
        DatabaseFile::Missing => lost("missing")?,
        DatabaseFile::Empty => lost("empty")?,
        DatabaseFile::Database(identity) => {
            if let (Some(ours), Some(theirs)) = (&recorded, &identity.instance)
                && ours != theirs
            {
                return Err(foreign(&path, ours, theirs));
            }
            let has_row = |id: &SandboxId| identity.sandboxes.contains(id.as_str());
            if recorded.is_none() && !sandboxes.is_empty() && !sandboxes.iter().any(has_row) {
                return Err(stranger(&path, sandboxes.len()));
            }
        }
    }
    Ok(found)
}

fn lost(path: &Path, state: &str, sandboxes: usize) -> Error {
    let message = match sandboxes {
        0 => format!(
            "the database {} is {state}, and a server has used its data directory before",
            path.display()
        ),
        some => format!(
            "the database {} is {state}, and its data directory has sandboxes: {some}",
            path.display()
        ),
    };
    Error::new(Code::Conflict, message).remedy(format!(
        "{}, or start once with --adopt-orphans, which makes a new database and adopts the sandboxes into its first org. \
         Nothing was changed",
        restore(path)
    ))
}

fn foreign(path: &Path, ours: &InstanceId, theirs: &InstanceId) -> Error {
    let message = format!(
        "the database {} belongs to instance {theirs}, and its data directory to instance {ours}",
        path.display()
    );
    Error::new(Code::Conflict, message).remedy(format!(
        "put the right one back, {}, or start once with --adopt-orphans, which goes on with this database and adopts \
         the sandboxes that it does not know. Nothing was changed",
        restore(path)
    ))
}

fn stranger(path: &Path, sandboxes: usize) -> Error {
    let message = format!(
        "the database {} has no row of any sandbox of its data directory, which has {sandboxes}",
        path.display()
    );
    Error::new(Code::Conflict, message).remedy(format!(
        "put the right one back, {}, or start once with --adopt-orphans, which goes on with this database and adopts \
         the sandboxes. Nothing was changed",
        restore(path)
    ))
}

/// Sandboxes whose create was acknowledged to a caller, according to the database.
pub(super) async fn acknowledged(data: &Path, store: &Store) -> Result<HashSet<SandboxId>, Error> {
    let rows = store.active_sandboxes().await;
    let rows = rows.map_err(|error| unusable(data, &error))?.into_iter();
    let acknowledged = rows.filter(|row| match row.state {
        SandboxState::Creating => row.started_at.is_some(),
        SandboxState::Failed => false,
        _ => true,
    });
    Ok(acknowledged.map(|row| row.id).collect())
}

/// Error and remedy for a database that cannot be opened.
pub(crate) fn unusable(data: &Path, error: &atoll_store::Error) -> Error {
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
