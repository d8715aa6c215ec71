//! A tar archive from the pipe, unpacked into a directory.
//!
//! Invariant: no entry is created outside of that directory, regardless of the archive and of concurrent changes. Parent
//! directories are opened by descriptor, beneath the directory; an existing file is replaced only by an entry of the same
//! name. Devices, FIFOs and names that lead out of the directory are skipped and reported.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use tar::EntryType;

use super::transfer::{committed, random_name};
use super::{Answer, At, Caller, Failed};
use crate::archive::{CopyError, Entries, Entry, Name, modification_time, replace_existing, split};
use crate::wire::{Failure, FromHelper, SkippedEntry};

/// Maximum skipped entries that are reported by name.
const MAX_REPORTED: usize = 100;
/// Maximum bytes of a reported name.
const MAX_REPORTED_NAME: usize = 200;
/// Number of ids of a sandbox; entries with others are given to the user `nobody`.
const IDS: u32 = 65_536;
const NOBODY: u32 = 65_534;

/// Unpacks the archive from the pipe; reports the result after the server's commit.
pub(super) fn unpack(
    caller: &Caller,
    path: &Path,
    answer: &Answer,
    data: Option<OwnedFd>,
) -> Result<(), Failed> {
    let Some(pipe) = data else {
        return Err(Failed::new(Failure::Kernel, path));
    };
    caller.make_directories(path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut unpacking = Unpacking {
        caller,
        top: rustix::fs::open(path, flags, Mode::empty()).at(path)?,
        path,
        parent: None,
        modes: Vec::new(),
        entries: 0,
        bytes: 0,
        left_out: 0,
        skipped_entries: Vec::new(),
    };
    let mut entries = Entries::new(BufReader::with_capacity(1 << 17, File::from(pipe)));
    while let Some(entry) = entries.next().map_err(|error| unreadable(&error))? {
        unpacking.unpack_entry(&entry, &mut entries)?;
    }
    // Archive writers pad the last record.
    io::copy(&mut entries.into_inner(), &mut io::sink()).at(path)?;
    unpacking.set_modes();
    committed(answer, path)?;
    unpacking.send_result(answer).at(path)
}

fn unreadable(error: &io::Error) -> Failed {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends too early".to_owned(),
        _ => error.to_string(),
    };
    Failed::new(Failure::Archive, Path::new(&why))
}

/// Why an entry was not unpacked.
enum EntryError {
    /// The entry is skipped.
    Skip(&'static str),
    /// The rest of the archive cannot be read.
    Read(io::Error),
    /// The file system fails, and will fail for later entries too.
    Kernel(Errno),
}

impl From<Errno> for EntryError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::XDEV | Errno::LOOP => Self::Skip("a link in the way to it leads out"),
            Errno::NOTDIR | Errno::NOENT | Errno::EXIST => {
                Self::Skip("something that is no directory stands in the way to it")
            }
            Errno::ISDIR | Errno::NOTEMPTY => Self::Skip("a directory has its name"),
            Errno::NAMETOOLONG => Self::Skip("its name is too long"),
            Errno::FBIG | Errno::INVAL => Self::Skip("no file can be like it"),
            Errno::AGAIN => Self::Skip("the way to it changes all the time"),
            error => Self::Kernel(error),
        }
    }
}

impl From<io::Error> for EntryError {
    fn from(error: io::Error) -> Self {
        Errno::from_io_error(&error).unwrap_or(Errno::IO).into()
    }
}

impl From<CopyError> for EntryError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Read(error) => Self::Read(error),
            CopyError::Write(error) => error.into(),
        }
    }
}

type Source = Entries<BufReader<File>>;

struct Unpacking<'a> {
    caller: &'a Caller,
    top: OwnedFd,
    path: &'a Path,
    /// Directory of the last entry: usually also that of the next.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// Modes of directories, set at the end: they may forbid writing.
    modes: Vec<(Vec<u8>, u32)>,
    entries: u64,
    bytes: u64,
    left_out: u64,
    skipped_entries: Vec<SkippedEntry>,
}

impl Unpacking<'_> {
    fn unpack_entry(&mut self, entry: &Entry, contents: &mut Source) -> Result<(), Failed> {
        match self.place(entry, contents) {
            Ok(()) => {
                self.entries += 1;
                Ok(())
            }
            Err(EntryError::Skip(why)) => {
                self.left_out += 1;
                if self.skipped_entries.len() < MAX_REPORTED {
                    let name = &entry.name[..entry.name.len().min(MAX_REPORTED_NAME)];
                    self.skipped_entries.push(SkippedEntry {
                        name: name.to_vec(),
                        why: why.to_owned(),
                    });
                }
                Ok(())
            }
            Err(EntryError::Read(error)) => Err(unreadable(&error)),
            Err(EntryError::Kernel(error)) => {
                use std::os::unix::ffi::OsStrExt;
                let name = std::ffi::OsStr::from_bytes(&entry.name);
                Err(error).at(&PathBuf::from(self.path).join(name))
            }
        }
    }

    fn place(&mut self, entry: &Entry, contents: &mut Source) -> Result<(), EntryError> {
        let name = Name::parse(&entry.name).map_err(EntryError::Skip)?;
        if name.is_root() {
            // The top directory itself is not changed.
            return Ok(());
        }
        match entry.kind {
            EntryType::Directory => self.directory(&name, entry),
            EntryType::Symlink => self.symlink(&name, entry),
            EntryType::Link => self.hard_link(&name, entry),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.file(&name, entry, contents)
            }
            _ => Err(EntryError::Skip(
                "it is neither a file, a directory nor a link",
            )),
        }
    }

    /// Whether root unpacks. Owners and set-id bits are kept for root only.
    fn is_root(&self) -> bool {
        self.caller.identity.uid == 0
    }

    fn owner(&self, entry: &Entry) -> Option<(Uid, Gid)> {
        let known = |id: u32| if id < IDS { id } else { NOBODY };
        let (uid, gid) = if self.is_root() {
            (known(entry.uid), known(entry.gid))
        } else {
            self.caller.owner?
        };
        Some((Uid::from_raw(uid), Gid::from_raw(gid)))
    }

    fn mode(&self, entry: &Entry) -> u32 {
        entry.mode & if self.is_root() { 0o7777 } else { 0o1777 }
    }

    /// Opens an existing name beneath the top directory.
    fn open(&self, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let name = if name.is_empty() { b"." } else { name };
        let flags = flags | OFlags::CLOEXEC;
        let mut opened = Err(Errno::AGAIN);
        // The kernel fails with `EAGAIN` while directories are moved.
        for _ in 0..100 {
            opened = rustix::fs::openat2(&self.top, name, flags, Mode::empty(), resolve);
            if !matches!(opened, Err(Errno::AGAIN)) {
                break;
            }
        }
        opened
    }

    /// Opens a directory; creates missing components.
    fn make_directories(&self, name: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open(name, flags) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let (above, last) = split(name);
        let parent = self.make_directories(above)?;
        match rustix::fs::mkdirat(&parent, last, Mode::from(0o755)) {
            Ok(()) => set_owner(&parent, last, self.parent_owner())?,
            // Another process was faster, or it is a dangling link.
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        self.open(name, flags)
    }

    /// Owner of directories without an entry.
    fn parent_owner(&self) -> Option<(Uid, Gid)> {
        let owner = self.caller.owner?;
        Some((Uid::from_raw(owner.0), Gid::from_raw(owner.1)))
    }

    fn directory(&mut self, name: &Name, entry: &Entry) -> Result<(), EntryError> {
        let (parent, last) = self.parent(name)?;
        let there = rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW);
        let kind = there.map(|found| FileType::from_raw_mode(found.st_mode));
        if kind.is_ok_and(|kind| kind != FileType::Directory)
            && self
                .open(name.bytes(), OFlags::PATH | OFlags::DIRECTORY)
                .is_err()
        {
            let (parent, last) = self.parent(name)?;
            rustix::fs::unlinkat(parent, last, AtFlags::empty())?;
        }
        self.make_directories(name.bytes())?;
        let mode = self.mode(entry);
        let usable = mode & 0o300 == 0o300;
        let opened = self.open(name.bytes(), OFlags::RDONLY | OFlags::DIRECTORY);
        let changed = opened.map_err(EntryError::from).and_then(|directory| {
            self.set_owner_and_mode(&directory, entry, if usable { mode } else { mode | 0o700 })
        });
        match changed {
            // An existing directory of another user is not changed.
            Err(EntryError::Kernel(Errno::PERM | Errno::ACCESS)) => {}
            Ok(()) if !usable => self.modes.push((name.bytes().to_vec(), mode)),
            changed => changed?,
        }
        Ok(())
    }

    /// Sets the owner, then the mode: in the other order the kernel would clear set-id bits.
    fn set_owner_and_mode(
        &self,
        file: &OwnedFd,
        entry: &Entry,
        mode: u32,
    ) -> Result<(), EntryError> {
        if let Some((uid, gid)) = self.owner(entry) {
            rustix::fs::fchown(file, Some(uid), Some(gid))?;
        }
        Ok(rustix::fs::fchmod(file, Mode::from(mode))?)
    }

    fn symlink(&mut self, name: &Name, entry: &Entry) -> Result<(), EntryError> {
        if entry.link.is_empty() || entry.link.contains(&0) {
            return Err(EntryError::Skip("it is a link to nothing"));
        }
        let owner = self.owner(entry);
        let (parent, last) = self.parent(name)?;
        let parent = parent.try_clone()?;
        replace_existing(&parent, last, || {
            rustix::fs::symlinkat(&*entry.link, &parent, last)
        })?;
        set_owner(&parent, last, owner)?;
        // The link may be a parent of the next entry.
        self.parent = None;
        Ok(())
    }

    fn hard_link(&mut self, name: &Name, entry: &Entry) -> Result<(), EntryError> {
        let target = Name::parse(&entry.link).map_err(EntryError::Skip)?;
        if target == *name {
            return Ok(());
        }
        let (directory, file) = target.split();
        let from = self.open(directory, OFlags::PATH | OFlags::DIRECTORY);
        let missing = EntryError::Skip("it is another name of what is not there");
        let from = from.map_err(|_| missing)?;
        let (parent, last) = self.parent(name)?;
        Ok(replace_existing(parent, last, || {
            rustix::fs::linkat(&from, file, parent, last, AtFlags::empty())
        })?)
    }

    fn file(
        &mut self,
        name: &Name,
        entry: &Entry,
        contents: &mut Source,
    ) -> Result<(), EntryError> {
        let (parent, last) = self.parent(name)?;
        let parent = parent.try_clone()?;
        // A temporary name first: a reader sees the old file or the new one.
        let new = random_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&parent, &*new, flags, Mode::RUSR | Mode::WUSR)?;
        let written = self
            .write_file(opened, entry, contents)
            .and_then(|()| Ok(rustix::fs::renameat(&parent, &*new, &parent, last)?));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&parent, &*new, AtFlags::empty());
        }
        written
    }

    fn write_file(
        &mut self,
        file: OwnedFd,
        entry: &Entry,
        contents: &mut Source,
    ) -> Result<(), EntryError> {
        let mut file = File::from(file);
        if entry.pieces.is_some() {
            file.set_len(entry.size)?;
        }
        contents.copy_contents(entry, &mut file, &mut self.bytes)?;
        let file = OwnedFd::from(file);
        self.set_owner_and_mode(&file, entry, self.mode(entry))?;
        let (seconds, nanoseconds) = entry.modified;
        // A time that the file system does not support is not an error.
        let _ = rustix::fs::futimens(&file, &modification_time(seconds, nanoseconds));
        Ok(())
    }

    /// Parent directory of an entry, and the last component of its name.
    fn parent<'n>(&mut self, name: &'n Name) -> Result<(&OwnedFd, &'n [u8]), EntryError> {
        let (directory, last) = name.split();
        if self
            .parent
            .as_ref()
            .is_none_or(|(path, _)| path != directory)
        {
            let opened = self.make_directories(directory)?;
            self.parent = Some((directory.to_vec(), opened));
        }
        match &self.parent {
            Some((_, parent)) => Ok((parent, last)),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// Sets modes of inner directories first: the mode of an outer one may prevent access.
    fn set_modes(&self) {
        for (name, mode) in self.modes.iter().rev() {
            if let Ok(directory) = self.open(name, OFlags::RDONLY | OFlags::DIRECTORY) {
                let _ = rustix::fs::fchmod(&directory, Mode::from(*mode));
            }
        }
    }

    fn send_result(self, answer: &Answer) -> io::Result<()> {
        let mut skipped_entries = self.skipped_entries.into_iter().peekable();
        while skipped_entries.peek().is_some() {
            // A packet has 16 KiB.
            let some = skipped_entries.by_ref().take(32).collect();
            answer.send(&FromHelper::SkippedEntry(some), &[])?;
        }
        let unpacked = FromHelper::Unpacked {
            entries: self.entries,
            bytes: self.bytes,
            left_out: self.left_out,
        };
        answer.send(&unpacked, &[])
    }
}

/// Sets the owner of a new entry, if there is one.
fn set_owner(parent: &OwnedFd, last: &[u8], owner: Option<(Uid, Gid)>) -> rustix::io::Result<()> {
    let Some((uid, gid)) = owner else {
        return Ok(());
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(parent, last, Some(uid), Some(gid), flags)
}
