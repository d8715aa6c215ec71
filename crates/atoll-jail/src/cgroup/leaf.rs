//! The control group of one exec, in cgroup2 only.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{Mode, OFlags};

use super::SandboxCgroup;
use super::directory::{make, open};
use super::usage::number_after;
use crate::Error;

/// A directory of cgroup2 that holds one exec.
#[derive(Debug)]
pub struct Leaf {
    path: PathBuf,
    /// Nothing of one that was taken over, which is not used again.
    directory: Option<Arc<Directory>>,
    state: Mutex<Use>,
}

/// What is open of a directory: making and opening things takes longer than all else around a short command.
#[derive(Debug)]
struct Directory {
    /// For cloning into it.
    itself: OwnedFd,
    /// `cgroup.events`; opened on first use.
    events: OnceLock<OwnedFd>,
}

/// What became of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It holds its exec.
    Own,
    /// Everything in it was killed. The kernel remembers that, and would kill whatever is cloned
    /// into it later from a group that was not: it is never used again.
    Killed,
    /// The exec is over and the directory another's.
    GivenUp,
}

/// The directory of an ended exec.
#[derive(Debug)]
pub enum End {
    /// Children of the exec live on in it.
    Lingers,
    /// It was removed, or is another's.
    Gone,
    /// It is empty and can hold another exec.
    Spare(Leaf),
}

impl SandboxCgroup {
    /// The directory of an exec that an earlier server started. A directory is reused after its exec has ended.
    pub fn named_leaf(&self, name: &str, ended: bool) -> Leaf {
        let state = if ended { Use::GivenUp } else { Use::Own };
        Leaf {
            path: self.v2.join(name),
            directory: None,
            state: Mutex::new(state),
        }
    }

    /// Makes a directory for one exec.
    pub fn leaf(&self, name: &str) -> Result<Leaf, Error> {
        let path = self.v2.join(name);
        make(&path)?;
        self.chown_to_sandbox(&path)?;
        let directory = Directory::new(open(&path)?);
        Ok(Leaf::new(path, Arc::new(directory)))
    }
}

impl Leaf {
    fn new(path: PathBuf, directory: Arc<Directory>) -> Self {
        let state = Mutex::new(Use::Own);
        Self {
            path,
            directory: Some(directory),
            state,
        }
    }

    /// The directory, for cloning into it.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        let directory = self.directory.as_ref();
        directory.map(|directory| directory.itself.as_fd())
    }

    /// Its name among the sandbox's.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn state(&self) -> MutexGuard<'_, Use> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills everything the exec started.
    pub fn kill(&self) -> io::Result<()> {
        // Held across the write: in between the directory could become another exec's.
        let mut state = self.state();
        if *state == Use::GivenUp {
            return Ok(());
        }
        *state = Use::Killed;
        match fs::write(self.path.join("cgroup.kill"), "1") {
            // Removed: no process is left.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// What to do with the directory of an ended exec. Making and removing one takes longer than
    /// all else around a short command, so an empty one is used again.
    pub fn end(&self) -> End {
        let mut state = self.state();
        match (*state, &self.directory) {
            (Use::GivenUp, _) => End::Gone,
            (Use::Own, Some(directory)) => {
                if directory.is_populated() {
                    return End::Lingers;
                }
                *state = Use::GivenUp;
                End::Spare(Self::new(self.path.clone(), Arc::clone(directory)))
            }
            (Use::Killed, _) | (Use::Own, None) => match fs::remove_dir(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => End::Lingers,
                _ => End::Gone,
            },
        }
    }
}

impl Directory {
    fn new(itself: OwnedFd) -> Self {
        let events = OnceLock::new();
        Self { itself, events }
    }

    fn events(&self) -> io::Result<&OwnedFd> {
        if let Some(events) = self.events.get() {
            return Ok(events);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = rustix::fs::openat(&self.itself, c"cgroup.events", flags, Mode::empty())?;
        Ok(self.events.get_or_init(|| events))
    }

    /// It has processes, or its state cannot be read; it is not reused now.
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
