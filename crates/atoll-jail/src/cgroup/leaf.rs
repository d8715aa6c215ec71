//! Leaf: the cgroup of one exec, in cgroup2 only.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{Mode, OFlags};

use super::SandboxCgroup;
use super::directory::{create_directory, open};
use super::usage::number_after;
use crate::Error;

/// A directory of cgroup2 that holds one exec.
#[derive(Debug)]
pub struct Leaf {
    path: PathBuf,
    /// `None` for a leaf of an adopted exec, which is not reused.
    directory: Option<Arc<Directory>>,
    state: Mutex<LeafState>,
}

/// Open descriptors of a leaf. They are kept for the next exec: creating and opening a cgroup is the largest part of the
/// overhead of a short command.
#[derive(Debug)]
struct Directory {
    /// Target of `CLONE_INTO_CGROUP`.
    descriptor: OwnedFd,
    /// `cgroup.events`; opened on first use.
    events: OnceLock<OwnedFd>,
}

/// State of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeafState {
    /// Has the processes of its exec.
    InUse,
    /// All its processes were killed. The kernel would also kill a process that is cloned into it later from a
    /// group that was not killed, so it is never reused.
    Killed,
    /// The exec has ended, and the directory belongs to another exec.
    Released,
}

/// Result of [`Leaf::end`].
#[derive(Debug)]
pub enum End {
    /// Children of the exec still run in it.
    Lingers,
    /// The directory was removed, or belongs to another exec.
    Gone,
    /// The directory is empty and can be reused.
    Spare(Leaf),
}

impl SandboxCgroup {
    /// The directory of an exec that an earlier server started. A directory is reused after its exec has ended.
    pub fn named_leaf(&self, name: &str, ended: bool) -> Leaf {
        let state = if ended {
            LeafState::Released
        } else {
            LeafState::InUse
        };
        Leaf {
            path: self.v2.join(name),
            directory: None,
            state: Mutex::new(state),
        }
    }

    /// Creates the directory of one exec.
    pub fn leaf(&self, name: &str) -> Result<Leaf, Error> {
        let path = self.v2.join(name);
        create_directory(&path)?;
        self.chown_to_sandbox(&path)?;
        let directory = Directory::new(open(&path)?);
        Ok(Leaf::new(path, Arc::new(directory)))
    }
}

impl Leaf {
    fn new(path: PathBuf, directory: Arc<Directory>) -> Self {
        let state = Mutex::new(LeafState::InUse);
        Self {
            path,
            directory: Some(directory),
            state,
        }
    }

    /// Descriptor of the directory, for `CLONE_INTO_CGROUP`.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        let directory = self.directory.as_ref();
        directory.map(|directory| directory.descriptor.as_fd())
    }

    /// Name of the directory.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn state(&self) -> MutexGuard<'_, LeafState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills all processes of the exec.
    pub fn kill(&self) -> io::Result<()> {
        // Locked during the write, so that the directory is not given to another exec meanwhile.
        let mut state = self.state();
        if *state == LeafState::Released {
            return Ok(());
        }
        *state = LeafState::Killed;
        match fs::write(self.path.join("cgroup.kill"), "1") {
            // Removed: no process is left.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// Ends the use of the leaf by its exec. An empty directory is returned for reuse.
    pub fn end(&self) -> End {
        let mut state = self.state();
        match (*state, &self.directory) {
            (LeafState::Released, _) => End::Gone,
            (LeafState::InUse, Some(directory)) => {
                if directory.is_populated() {
                    return End::Lingers;
                }
                *state = LeafState::Released;
                End::Spare(Self::new(self.path.clone(), Arc::clone(directory)))
            }
            (LeafState::Killed, _) | (LeafState::InUse, None) => match fs::remove_dir(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => End::Lingers,
                _ => End::Gone,
            },
        }
    }
}

impl Directory {
    fn new(descriptor: OwnedFd) -> Self {
        let events = OnceLock::new();
        Self { descriptor, events }
    }

    fn events(&self) -> io::Result<&OwnedFd> {
        if let Some(events) = self.events.get() {
            return Ok(events);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = rustix::fs::openat(&self.descriptor, c"cgroup.events", flags, Mode::empty())?;
        Ok(self.events.get_or_init(|| events))
    }

    /// Whether the leaf has processes. True if that cannot be read, so that it is not reused.
    fn is_populated(&self) -> bool {
        let mut text = [0; 256];
        let read = self
            .events()
            .and_then(|events| Ok(rustix::io::pread(events, &mut text, 0)?));
        let text = read.map(|read| String::from_utf8_lossy(&text[..read]));
        text.map_or(true, |text| number_after(&text, "populated") != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_cgroup_events_count_as_populated() {
        let name = format!("atoll-leaf-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a directory");
        let open = Directory::new(fs::File::open(&directory).expect("open").into());
        assert!(open.is_populated(), "nothing is there to be read");
        for (text, populated) in [
            ("populated 1\nfrozen 0\n", true),
            ("populated 0\nfrozen 0\n", false),
        ] {
            fs::write(directory.join("cgroup.events"), text).expect("written");
            assert_eq!(open.is_populated(), populated, "{text}");
        }
        fs::remove_dir_all(directory).expect("removed");
    }
}
