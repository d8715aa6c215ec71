//! Fills a layer from a directory or an archive.
//!
//! Invariant: an archive's entry is created by descriptor in a directory that was reached without a
//! symlink, so it cannot land outside the layer. Entries that a layer must not have (devices,
//! FIFOs, sockets, other attributes) are skipped and counted; an entry that leads out of the layer
//! fails the whole import.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use atoll_jail::archive::{CAPABILITY, CopyError, Entry, Name, modification_time};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use tar::EntryType;

use super::accounts::account_lines;
use super::archive::{self, Entries};
use super::build_limits::{BuildMeter, Stage};
use super::copy::{Copier, Rules, count};
use super::layer_path::{self, NEW_FILE};
use super::{Error, TemplateUser, failed};

/// Mount points of a sandbox, with their modes.
const MOUNT_POINTS: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("proc", 0o555),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
];

/// Copies the tree in the directory `path`, without other file systems in it and without the
/// directory `avoid`.
pub(super) fn directory(
    path: &Path,
    layer: &OwnedFd,
    avoid: (u64, u64),
    meter: &mut BuildMeter<'_>,
) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let from =
        rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open the directory", path))?;
    meter.total_files = Some(count(&from));
    meter.report_progress();
    let rules = Rules {
        one_file_system: true,
        avoid,
        ..Rules::default()
    };
    Copier::new(layer, meter)?.contents(&from, "", &rules)
}

/// Source of an archive.
pub(super) enum ArchiveSource<'a> {
    File(&'a Path),
    /// An upload.
    Stream(Box<dyn Read>),
}

/// Unpacks an archive.
pub(super) fn archive(
    input: ArchiveSource<'_>,
    layer: &OwnedFd,
    meter: &mut BuildMeter<'_>,
) -> Result<(), Error> {
    meter.stage = Stage::Unpacking;
    meter.report_progress();
    let max_bytes = meter.max_bytes();
    let path = match input {
        ArchiveSource::File(path) => path,
        ArchiveSource::Stream(_) => Path::new("the uploaded archive"),
    };
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge => Error::TooLarge(max_bytes),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => {
            failed("open", path)(error)
        }
        io::ErrorKind::UnexpectedEof => Error::Archive {
            path: path.to_owned(),
            reason: "it ends too early; copy it again".to_owned(),
        },
        _ => Error::Archive {
            path: path.to_owned(),
            reason: error.to_string(),
        },
    };
    let entries = match input {
        ArchiveSource::File(path) => archive::open(path, max_bytes),
        ArchiveSource::Stream(stream) => archive::from_reader(stream, max_bytes),
    };
    let mut entries = entries.map_err(unreadable)?;
    let mut unpacking = Unpacking {
        layer,
        meter,
        parent: None,
        directory_times: HashMap::new(),
    };
    let mut empty = true;
    while let Some(entry) = entries.next().map_err(unreadable)? {
        empty = false;
        match unpacking.create_entry(&entry, &mut entries) {
            Ok(()) => {}
            Err(EntryError::Refused(reason)) => {
                return Err(Error::Refused {
                    entry: String::from_utf8_lossy(&entry.name).into_owned(),
                    reason,
                });
            }
            Err(EntryError::Read(error)) => return Err(unreadable(error)),
            Err(EntryError::Build(error)) => return Err(error),
        }
    }
    if empty {
        return Err(Error::Archive {
            path: path.to_owned(),
            reason: "it is empty; use a tar archive of a root file system".to_owned(),
        });
    }
    unpacking.set_directory_times();
    // Bytes after the end of the archive belong to the upload, which must be complete.
    io::copy(&mut entries.into_inner(), &mut io::sink()).map_err(unreadable)?;
    Ok(())
}

/// Completes an imported tree: mount points, and an account and a home directory for its user.
pub(super) fn complete(layer: &OwnedFd, user: &TemplateUser) -> Result<(), Error> {
    for (name, mode) in MOUNT_POINTS {
        // A symlink of that name may stay: the sandbox mounts without following symlinks.
        if rustix::fs::mkdirat(layer, *name, Mode::RWXU).is_ok() {
            let opened = layer_path::open_directory(layer, name.as_bytes());
            opened
                .and_then(|dir| layer_path::set_owner_and_mode(&dir, 0, 0, *mode))
                .map_err(failed("create", *name))?;
        }
    }
    for (name, line) in account_lines(user) {
        append_account(layer, name, &line, user)
            .map_err(failed("add the user to", format!("/{name}")))?;
    }
    let home = user.home.strip_prefix("/").unwrap_or(&user.home);
    let home =
        Name::parse(home.as_os_str().as_encoded_bytes()).map_err(|reason| Error::Refused {
            entry: user.home.display().to_string(),
            reason: reason.to_owned(),
        })?;
    if home.is_root()
        || !matches!(
            layer_path::open(layer, home.bytes(), OFlags::PATH),
            Err(Errno::NOENT)
        )
    {
        return Ok(());
    }
    layer_path::make_directories(layer, home.bytes())
        .and_then(|dir| layer_path::set_owner_and_mode(&dir, user.uid, user.gid, 0o755))
        .map_err(failed("create the home directory", &user.home))
}

/// Adds a line to an account file, unless the file is absent or not regular, or has the name or the
/// id already.
fn append_account(layer: &OwnedFd, name: &str, line: &str, user: &TemplateUser) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NONBLOCK;
    let Ok(file) = layer_path::open(layer, name.as_bytes(), flags) else {
        return Ok(());
    };
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size > 16 << 20 {
        return Ok(());
    }
    let mut file = File::from(file);
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let id = if name == "etc/group" {
        user.gid
    } else {
        user.uid
    };
    let known = text.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        fields.next() == Some(user.name.as_bytes())
            || (name != "etc/shadow" && fields.nth(1) == Some(id.to_string().as_bytes()))
    });
    if known {
        return Ok(());
    }
    if text.last().is_some_and(|byte| *byte != b'\n') {
        file.write_all(b"\n")?;
    }
    file.write_all(line.as_bytes())
}

/// Why an entry was not created.
enum EntryError {
    Refused(String),
    Read(io::Error),
    Build(Error),
}

impl From<Errno> for EntryError {
    fn from(error: Errno) -> Self {
        if matches!(error, Errno::NOSPC | Errno::DQUOT) {
            return Self::Build(Error::Full);
        }
        Self::Refused(match error {
            Errno::LOOP => {
                "a parent directory is a symlink, which could lead out of the template".to_owned()
            }
            Errno::NOTDIR => "a parent directory is a file".to_owned(),
            Errno::XDEV => "it leads out of the template".to_owned(),
            Errno::NAMETOOLONG => {
                "its name is too long for a file system (255 bytes per component, 4,095 in total)"
                    .to_owned()
            }
            error => io::Error::from(error).to_string(),
        })
    }
}

impl From<CopyError> for EntryError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Read(error) => Self::Read(error),
            CopyError::Write(error) => match error.raw_os_error() {
                Some(errno) => Errno::from_raw_os_error(errno).into(),
                None => Self::Refused(format!("it cannot be written: {error}")),
            },
        }
    }
}

struct Unpacking<'a, 'b> {
    layer: &'a OwnedFd,
    meter: &'a mut BuildMeter<'b>,
    /// Directory of the last entry, which is often the directory of the next one too.
    parent: Option<(Vec<u8>, OwnedFd)>,
    /// Set at the end, because every file created in a directory changes its time.
    directory_times: HashMap<Vec<u8>, (i64, u32)>,
}

impl Unpacking<'_, '_> {
    fn create_entry(&mut self, entry: &Entry, contents: &mut Entries) -> Result<(), EntryError> {
        let name =
            Name::parse(&entry.name).map_err(|reason| EntryError::Refused(reason.to_owned()))?;
        if name.is_root() {
            // The layer's own directory stays owned by root with mode 755, even if the archive has
            // a private one.
            return Ok(());
        }
        match entry.kind {
            EntryType::Directory => self.directory(&name, entry)?,
            EntryType::Symlink => self.symlink(&name, entry)?,
            EntryType::Link => self.hard_link(&name, entry)?,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                return self.file(&name, entry, contents);
            }
            _ => {
                self.meter.skip();
                return Ok(());
            }
        }
        self.meter.entry().map_err(EntryError::Build)
    }

    fn directory(&mut self, name: &Name, entry: &Entry) -> Result<(), EntryError> {
        let (parent, last) = self.parent(name)?;
        let created = replace_existing(parent, last, || {
            match rustix::fs::mkdirat(parent, last, Mode::RWXU) {
                Err(Errno::EXIST) if is_directory(parent, last) => Ok(()),
                answer => answer,
            }
        });
        created?;
        let dir = layer_path::open_directory(parent, last)?;
        layer_path::set_owner_and_mode(&dir, entry.uid, entry.gid, entry.mode)?;
        self.directory_times
            .insert(name.bytes().to_vec(), entry.modified);
        Ok(())
    }

    fn symlink(&mut self, name: &Name, entry: &Entry) -> Result<(), EntryError> {
        if entry.link.is_empty() || entry.link.contains(&0) {
            return Err(EntryError::Refused("it is a symlink to nothing".to_owned()));
        }
        self.clear_parent();
        let (parent, last) = self.parent(name)?;
        let times = modification_time(entry.modified.0, entry.modified.1);
        let owner = (entry.uid, entry.gid);
        replace_existing(parent, last, || {
            layer_path::make_symlink(parent, last, &entry.link, owner, &times)
        })
    }

    fn hard_link(&mut self, name: &Name, entry: &Entry) -> Result<(), EntryError> {
        let missing = || {
            EntryError::Refused(format!(
                "it is a hard link to {:?}, which does not come before it in the archive",
                display_name(&entry.link)
            ))
        };
        let target = Name::parse(&entry.link)
            .map_err(|reason| EntryError::Refused(format!("as a hard link's target: {reason}")))?;
        let (directory, file) = target.split();
        let from =
            layer_path::open_directory(self.layer, directory).map_err(|error| match error {
                Errno::NOENT => missing(),
                error => error.into(),
            })?;
        if target == *name {
            return Ok(());
        }
        match rustix::fs::statat(&from, file, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Directory => {}
            Ok(_) => {
                return Err(EntryError::Refused(
                    "it is a hard link to a directory".to_owned(),
                ));
            }
            Err(_) => return Err(missing()),
        }
        let (parent, last) = self.parent(name)?;
        replace_existing(parent, last, || {
            rustix::fs::linkat(&from, file, parent, last, AtFlags::empty())
        })?;
        self.meter.report.hard_linked += 1;
        Ok(())
    }

    fn file(
        &mut self,
        name: &Name,
        entry: &Entry,
        contents: &mut Entries,
    ) -> Result<(), EntryError> {
        // Counted first: a file that is too large must not be written.
        self.meter
            .entry()
            .and_then(|()| self.meter.bytes(entry.size))
            .map_err(EntryError::Build)?;
        let (parent, last) = self.parent(name)?;
        let mut created = None;
        replace_existing(parent, last, || {
            created = Some(rustix::fs::openat(
                parent,
                last,
                NEW_FILE,
                Mode::RUSR | Mode::WUSR,
            )?);
            Ok(())
        })?;
        let Some(created) = created else {
            return Err(Errno::EXIST.into());
        };
        let mut file = File::from(created);
        if entry.pieces.is_some() {
            rustix::fs::ftruncate(&file, entry.size)?;
        }
        contents.copy_contents(entry, &mut file, &mut 0)?;
        layer_path::set_owner_and_mode(&file, entry.uid, entry.gid, entry.mode)?;
        if let Some(capability) = &entry.capability
            && rustix::fs::fsetxattr(&file, CAPABILITY, capability, XattrFlags::empty()).is_err()
        {
            self.meter.skip();
        }
        rustix::fs::futimens(
            &file,
            &modification_time(entry.modified.0, entry.modified.1),
        )?;
        Ok(())
    }

    /// The directory of `name`, created if it is absent, and the last component of `name`.
    fn parent<'n>(&mut self, name: &'n Name) -> Result<(&OwnedFd, &'n [u8]), EntryError> {
        let (directory, last) = name.split();
        if self
            .parent
            .as_ref()
            .is_none_or(|(path, _)| path != directory)
        {
            self.parent = Some((
                directory.to_vec(),
                layer_path::make_directories(self.layer, directory)?,
            ));
        }
        match &self.parent {
            Some((_, parent)) => Ok((parent, last)),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn clear_parent(&mut self) {
        self.parent = None;
    }

    /// A directory that was replaced by a later entry has no times to set; errors are ignored.
    fn set_directory_times(&self) {
        for (name, (seconds, nanoseconds)) in &self.directory_times {
            if let Ok(dir) = layer_path::open_directory(self.layer, name) {
                let _ = rustix::fs::futimens(&dir, &modification_time(*seconds, *nanoseconds));
            }
        }
    }
}

/// Creates an entry and replaces an existing file or symlink, as `tar` does, but no directory.
fn replace_existing(
    parent: &OwnedFd,
    last: &[u8],
    create: impl FnMut() -> rustix::io::Result<()>,
) -> Result<(), EntryError> {
    atoll_jail::archive::replace_existing(parent, last, create).map_err(|error| match error {
        Errno::ISDIR => EntryError::Refused("a directory of that name came before it".to_owned()),
        error => error.into(),
    })
}

fn is_directory(parent: &OwnedFd, last: &[u8]) -> bool {
    rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn display_name(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
