//! Registry of the host's instances, and locks of data directories.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error};

use super::{HOST_STATE_DIRECTORY, data_directory, private_directory};
use crate::error::host_file_error;

/// Time for a keeper that is exiting to release its lock.
const KEEPER_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Directory in which all instances of this host are registered.
pub(super) fn path() -> PathBuf {
    Path::new(HOST_STATE_DIRECTORY).join("instances")
}

/// The same, created if it is absent.
pub(super) fn open() -> Result<PathBuf, Error> {
    let registry = path();
    private_directory(Path::new(HOST_STATE_DIRECTORY))?;
    private_directory(&registry)?;
    Ok(registry)
}

/// Finds a free tag and locks its entry.
pub(super) fn register(
    registry: &Path,
    directory: impl Fn(&str) -> PathBuf,
) -> Result<(String, File), Error> {
    for _ in 0..100 {
        let tag = random_tag();
        let path = registry.join(&tag);
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let mut file = match created {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(host_file_error("register an instance in", &path, &error)),
        };
        // Garbage collection may have removed the entry between creating and locking it.
        let locked = file.try_lock().is_ok() && path.exists();
        if locked {
            let written = file.write_all(directory(&tag).as_os_str().as_encoded_bytes());
            written.map_err(|error| host_file_error("register an instance in", &path, &error))?;
            return Ok((tag, file));
        }
    }
    Err(Error::new(Code::NoCapacity, "no instance tag is free").remedy("run atoll gc"))
}

/// Locks the entry of a dead instance; `None` if the instance lives or is not registered.
pub(super) fn lock_dead(tag: &str) -> Result<Option<File>, Error> {
    let entry = path().join(tag);
    match File::open(&entry) {
        Ok(file) => Ok(file.try_lock().is_ok().then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(host_file_error("open", &entry, &error)),
    }
}

fn random_tag() -> String {
    atoll_model::SandboxId::random().as_str()[1..5].to_owned()
}

pub(super) fn read_tag(data: &Path) -> Option<String> {
    let tag = fs::read_to_string(data.join("tag")).ok()?;
    let is_valid = tag.len() == 4 && tag.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_valid.then_some(tag)
}

/// Registers a data directory's instance, with its earlier tag if that is free.
pub(super) fn register_persistent(
    registry: &Path,
    data: &Path,
    tag: Option<String>,
) -> Result<(String, File), Error> {
    if let Some(tag) = tag {
        let path = registry.join(&tag);
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let mut file =
            opened.map_err(|error| host_file_error("register an instance in", &path, &error))?;
        wait_for_lock(&file, &tag)?;
        if path.exists() {
            let written = file
                .set_len(0)
                .and_then(|()| file.write_all(data.as_os_str().as_encoded_bytes()));
            written.map_err(|error| host_file_error("register an instance in", &path, &error))?;
            return Ok((tag, file));
        }
    }
    let (tag, file) = register(registry, |_| data.to_owned())?;
    let path = data.join("tag");
    fs::write(&path, &tag).map_err(|error| host_file_error("write", &path, &error))?;
    Ok((tag, file))
}

/// Waits for the lock of an instance whose data directory this process has locked: only its keeper,
/// which is exiting, can hold it.
fn wait_for_lock(file: &File, tag: &str) -> Result<(), Error> {
    let until = Instant::now() + KEEPER_EXIT_TIMEOUT;
    while file.try_lock().is_err() {
        if Instant::now() >= until {
            let message = format!("the keeper of instance {tag} runs but does not respond");
            return Err(Error::new(Code::Conflict, message)
                .detail("tag", tag)
                .remedy(format!("end the process \"atoll-keeper {tag}\" first")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The lock of a data directory, which one process serves. Released when it is dropped.
#[derive(Debug)]
pub struct DataLock {
    file: File,
}

impl DataLock {
    /// Locks a data directory, which is created if it is absent. A `CONFLICT` names the process
    /// that holds the lock.
    pub fn acquire(data: &Path) -> Result<Self, Error> {
        loop {
            let file = try_lock_data(data)?;
            // The directory may have been replaced between opening and locking the file.
            let (locked, current) = (file.metadata(), fs::metadata(data.join("lock")));
            use std::os::unix::fs::MetadataExt;
            if let (Ok(locked), Ok(current)) = (locked, current)
                && (locked.dev(), locked.ino()) == (current.dev(), current.ino())
            {
                return Ok(Self { file });
            }
        }
    }

    /// Unlocks it, although a process that inherited the descriptor may still hold it.
    pub(crate) fn release(&self) -> io::Result<()> {
        self.file.unlock()
    }
}

fn try_lock_data(data: &Path) -> Result<File, Error> {
    data_directory(data)?;
    let path = data.join("lock");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let mut file = opened.map_err(|error| host_file_error("open", &path, &error))?;
    if file.try_lock().is_err() {
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        let message = format!("{} is served by process {}", data.display(), holder.trim());
        return Err(Error::new(Code::Conflict, message)
            .detail("pid", holder.trim())
            .remedy("end that process first, or choose another data directory"));
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
    written.map_err(|error| host_file_error("write", &path, &error))?;
    Ok(file)
}
