//! Copies a directory tree into a layer, by hard link or reflink where that is possible and safe.
//!
//! Invariant: hard links are created only to files that only root can change, and such a file is
//! never changed here (no chmod, no chown, no write), because it is the host's own inode.

mod rules;

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atoll_jail::archive::{CAPABILITY, modification_time};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use super::build_limits::BuildMeter;
use super::layer_path::{self, NEW_FILE};
use super::{Error, OPEN_DIRECTORY, failed};
pub(super) use rules::{Rules, matches_any};

/// Maximum depth of a copied tree: two descriptors a level must fit the default limit of 1,024.
const MAX_DEPTH: usize = 256;

/// Copies into one layer.
pub(super) struct Copier<'a, 'b> {
    layer: &'a OwnedFd,
    pub(super) meter: &'a mut BuildMeter<'b>,
    device: u64,
    reflink: bool,
    /// Path of the first copy of a file with several names.
    first_copies: HashMap<(u64, u64), CString>,
    /// Files with several names whose size was counted.
    counted: HashSet<(u64, u64)>,
}

/// A directory of the source and its copy.
struct Pair<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
}

/// An entry of the source directory of `pair`.
struct Entry<'a> {
    pair: &'a Pair<'a>,
    name: &'a CStr,
    stat: &'a Stat,
    rules: &'a Rules,
}

impl Entry<'_> {
    /// User and group of the copy.
    fn owner(&self) -> (u32, u32) {
        let source = (self.stat.st_uid, self.stat.st_gid);
        self.rules.owner.unwrap_or(source)
    }

    fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }
}

impl<'a, 'b> Copier<'a, 'b> {
    pub(super) fn new(layer: &'a OwnedFd, meter: &'a mut BuildMeter<'b>) -> Result<Self, Error> {
        let device = rustix::fs::fstat(layer)
            .map_err(failed("examine", "the layer"))?
            .st_dev;
        Ok(Self {
            layer,
            meter,
            device,
            reflink: true,
            first_copies: HashMap::new(),
            counted: HashSet::new(),
        })
    }

    /// Copies the entry `name` of the directory `from` to the directory `path` of the layer. An
    /// absent entry is no error.
    pub(super) fn entry(
        &mut self,
        from: &OwnedFd,
        name: &CStr,
        path: &str,
        rules: &Rules,
    ) -> Result<(), Error> {
        let to = layer_path::make_directories(self.layer, path.as_bytes())
            .map_err(failed("create the directory", path))?;
        let mut at = path.as_bytes().to_vec();
        self.copy(&Pair { from, to: &to }, name, &mut at, rules, 0)
    }

    /// Copies everything in the directory `from` to the directory `path` of the layer.
    pub(super) fn contents(
        &mut self,
        from: &OwnedFd,
        path: &str,
        rules: &Rules,
    ) -> Result<(), Error> {
        let to = layer_path::make_directories(self.layer, path.as_bytes())
            .map_err(failed("create the directory", path))?;
        let mut at = path.as_bytes().to_vec();
        self.walk(&Pair { from, to: &to }, &mut at, rules, 0)
    }

    fn walk(
        &mut self,
        pair: &Pair<'_>,
        at: &mut Vec<u8>,
        rules: &Rules,
        level: usize,
    ) -> Result<(), Error> {
        for name in names(pair.from).map_err(failed("list", display_path(at)))? {
            self.copy(pair, &name, at, rules, level)?;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        pair: &Pair<'_>,
        name: &CStr,
        at: &mut Vec<u8>,
        rules: &Rules,
        level: usize,
    ) -> Result<(), Error> {
        let stat = match rustix::fs::statat(pair.from, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed("examine", display_path(at).join(os(name)))(error)),
        };
        let length = at.len();
        if !at.is_empty() {
            at.push(b'/');
        }
        at.extend_from_slice(name.to_bytes());
        let entry = Entry {
            pair,
            name,
            stat: &stat,
            rules,
        };
        let done = self.copy_one(&entry, at, level);
        at.truncate(length);
        done
    }

    fn copy_one(&mut self, entry: &Entry<'_>, at: &mut Vec<u8>, level: usize) -> Result<(), Error> {
        if entry.rules.excludes(entry.stat, at) {
            self.meter.skip();
            return Ok(());
        }
        match FileType::from_raw_mode(entry.stat.st_mode) {
            FileType::Directory => self.directory(entry, at, level),
            FileType::RegularFile => self.file(entry, at),
            FileType::Symlink => self.symlink(entry, at),
            _ => {
                self.meter.skip();
                Ok(())
            }
        }
    }

    fn directory(
        &mut self,
        entry: &Entry<'_>,
        at: &mut Vec<u8>,
        level: usize,
    ) -> Result<(), Error> {
        let Entry {
            pair,
            name,
            stat,
            rules,
        } = *entry;
        if level >= MAX_DEPTH {
            let reason =
                format!("it is more than {MAX_DEPTH} directories deep; use a flatter tree");
            return Err(refused(at, reason));
        }
        self.meter.entry()?;
        match rustix::fs::mkdirat(pair.to, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("create the directory", display_path(at))(error)),
        }
        let to = layer_path::open_directory(pair.to, name.to_bytes())
            .map_err(failed("open", display_path(at)))?;
        let from = rustix::fs::openat(pair.from, name, OPEN_DIRECTORY, Mode::empty());
        let from = from.map_err(failed("open", display_path(at)))?;
        let parent = rustix::fs::fstat(pair.from).map_err(failed("examine", display_path(at)))?;
        if rules.one_file_system && stat.st_dev != parent.st_dev {
            self.meter.skip();
        } else {
            self.walk(
                &Pair {
                    from: &from,
                    to: &to,
                },
                at,
                rules,
                level + 1,
            )?;
        }
        let (uid, gid) = entry.owner();
        layer_path::set_owner_and_mode(&to, uid, gid, stat.st_mode)
            .and_then(|()| rustix::fs::futimens(&to, &times(stat)))
            .map_err(failed("set the attributes of", display_path(at)))
    }

    fn symlink(&mut self, entry: &Entry<'_>, at: &[u8]) -> Result<(), Error> {
        let (pair, name, stat) = (entry.pair, entry.name, entry.stat);
        self.meter.entry()?;
        // A symlink cannot be changed in place, so a hard link to the host's symlink is safe and
        // saves an inode.
        if entry.rules.can_link_symlink(stat, self.device)
            && self.try_link(pair.from, name, entry, at)?
        {
            return Ok(());
        }
        let target = match rustix::fs::readlinkat(pair.from, name, Vec::new()) {
            Ok(target) => target,
            Err(error) => return Err(failed("read the link", display_path(at))(error)),
        };
        layer_path::make_symlink(
            pair.to,
            name.to_bytes(),
            target.to_bytes(),
            entry.owner(),
            &times(stat),
        )
        .map_err(failed("create the link", display_path(at)))
    }

    fn file(&mut self, entry: &Entry<'_>, at: &[u8]) -> Result<(), Error> {
        let Entry {
            pair,
            name,
            stat,
            rules,
        } = *entry;
        // Non-blocking in case it was replaced by a FIFO since the examination.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let from = match rustix::fs::openat(pair.from, name, flags, Mode::empty()) {
            Ok(from) => File::from(from),
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed("open", display_path(at))(error)),
        };
        let now = rustix::fs::fstat(&from).map_err(failed("examine", display_path(at)))?;
        if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino) {
            let reason =
                "it was replaced while it was copied; try again when no program writes there"
                    .to_owned();
            return Err(refused(at, reason));
        }
        let size = entry.size();
        if rules
            .has_credentials(&from, size)
            .map_err(failed("read", display_path(at)))?
        {
            self.meter.skip();
            return Ok(());
        }
        self.meter.entry()?;
        if let Some(first) = self.first_copies.get(&(stat.st_dev, stat.st_ino)).cloned()
            && self.try_link(self.layer, &first, entry, at)?
        {
            return Ok(());
        }
        if stat.st_nlink <= 1 || self.counted.insert((stat.st_dev, stat.st_ino)) {
            self.meter.bytes(size)?;
        }
        if rules.can_link_file(stat, &from, at, self.device)
            && self.try_link(pair.from, name, entry, at)?
        {
            return Ok(());
        }
        self.write(entry, &from)
            .map_err(failed("copy", display_path(at)))?;
        if stat.st_nlink > 1
            && let Ok(first) = CString::new(at)
        {
            self.first_copies.insert((stat.st_dev, stat.st_ino), first);
        }
        Ok(())
    }

    /// Tries a hard link; false if the file has to be copied.
    fn try_link(
        &mut self,
        directory: &OwnedFd,
        original: &CStr,
        entry: &Entry<'_>,
        at: &[u8],
    ) -> Result<bool, Error> {
        let (to, name) = (entry.pair.to, entry.name);
        match rustix::fs::linkat(directory, original, to, name, AtFlags::empty()) {
            Ok(()) => {
                self.meter.report.hard_linked += 1;
                Ok(true)
            }
            // Another mount of the same disk, an immutable file, too many links.
            Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(failed("link", display_path(at))(error)),
        }
    }

    fn write(&mut self, entry: &Entry<'_>, from: &File) -> std::io::Result<()> {
        let mut to = File::from(rustix::fs::openat(
            entry.pair.to,
            entry.name,
            NEW_FILE,
            Mode::RUSR | Mode::WUSR,
        )?);
        if !self.try_reflink(from, &to) {
            // The standard library uses copy_file_range.
            std::io::copy(&mut from.take(entry.size()), &mut to)?;
        }
        let (uid, gid) = entry.owner();
        layer_path::set_owner_and_mode(&to, uid, gid, entry.stat.st_mode)?;
        let mut capability = [0_u8; 64];
        if let Ok(length) = rustix::fs::fgetxattr(from, CAPABILITY, &mut capability[..]) {
            rustix::fs::fsetxattr(&to, CAPABILITY, &capability[..length], XattrFlags::empty())?;
        }
        rustix::fs::futimens(&to, &times(entry.stat))?;
        Ok(())
    }

    fn try_reflink(&mut self, from: &File, to: &File) -> bool {
        if !self.reflink {
            return false;
        }
        match rustix::fs::ioctl_ficlone(to, from) {
            Ok(()) => true,
            Err(error) => {
                self.reflink = !matches!(error, Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS);
                false
            }
        }
    }
}

/// Approximate number of entries below `dir`, for a progress bar; directories that cannot be read
/// count as empty.
pub(super) fn count(dir: &OwnedFd) -> u64 {
    fn below(dir: OwnedFd, level: usize) -> u64 {
        let Ok(mut entries) = Dir::new(dir) else {
            return 0;
        };
        let mut found = 0;
        while let Some(Ok(entry)) = entries.read() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            found += 1;
            if entry.file_type() == FileType::Directory
                && level < MAX_DEPTH
                && let Ok(dir) = entries.fd()
                && let Ok(child) = rustix::fs::openat(dir, name, OPEN_DIRECTORY, Mode::empty())
            {
                found += below(child, level + 1);
            }
        }
        found
    }
    rustix::fs::openat(dir, ".", OPEN_DIRECTORY, Mode::empty()).map_or(0, |dir| below(dir, 0))
}

/// The names in a directory, in the order of their inodes, so that a disk reads sequentially.
pub(super) fn names(dir: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push((entry.ino(), entry.file_name().to_owned()));
        }
    }
    names.sort_unstable();
    Ok(names.into_iter().map(|(_, name)| name).collect())
}

fn times(stat: &Stat) -> rustix::fs::Timestamps {
    modification_time(stat.st_mtime, stat.st_mtime_nsec as u32)
}

fn refused(at: &[u8], reason: String) -> Error {
    Error::Refused {
        entry: display_path(at).display().to_string(),
        reason,
    }
}

fn display_path(at: &[u8]) -> PathBuf {
    Path::new("/").join(std::ffi::OsStr::from_bytes(at))
}

fn os(name: &CStr) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(name.to_bytes())
}
