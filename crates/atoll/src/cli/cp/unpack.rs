//! Downloads of directories. Names in the archive come from the sandbox and are not trusted: each
//! is resolved below the target directory, one normal component at a time and without following
//! links, and symbolic links are created last.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use atoll_client::{Client, Request, RequestError, RetryPolicy};
use atoll_model::{Code, Error};
use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};
use tokio::sync::mpsc;

use super::super::server_args::plain;
use super::download::unwritable;
use super::{bar, report_skipped};

/// Timeout between two parts of the response.
const SILENCE: Duration = Duration::from_mins(1);

/// Downloads a directory recursively; starts from the beginning if the connection breaks.
pub(super) async fn directory(client: &Client, path: &str, target: &Path) -> Result<(), Error> {
    let shown = bar(&target.display().to_string(), None);
    let mut retry = RetryPolicy::new(true);
    loop {
        shown.set_position(0);
        let response = match client.send_once(&Request::get(path)).await {
            Ok(response) => response,
            Err(failure) => {
                retry.after(client, failure).await?;
                continue;
            }
        };
        let (sender, parts) = mpsc::channel(8);
        let top = target.to_owned();
        let unpacked = tokio::task::spawn_blocking(move || unpack(parts, &top));
        let mut body = response.into_body().into_data_stream();
        let mut broke = None;
        loop {
            let part = match tokio::time::timeout(SILENCE, body.next()).await {
                Ok(Some(Ok(part))) => Ok(part),
                Ok(None) => break,
                Ok(Some(Err(error))) => Err(error.to_string()),
                Err(_) => Err(format!("nothing came for {} s", SILENCE.as_secs())),
            };
            shown.inc(part.as_ref().map_or(0, Bytes::len) as u64);
            broke = part.as_ref().err().cloned();
            let part = part.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof));
            // The receiver is dropped if unpacking failed; its error is returned below.
            if sender.send(part).await.is_err() || broke.is_some() {
                break;
            }
        }
        drop(sender);
        let unpacked = unpacked.await;
        if let Some(why) = broke {
            let message = format!("the connection to {} broke: {why}", client.target());
            let failure = RequestError::ConnectionLost(Error::new(Code::Timeout, message));
            retry.after(client, failure).await?;
            continue;
        }
        shown.finish_and_clear();
        let (count, names) =
            unpacked.map_err(|error| Error::new(Code::Internal, error.to_string()))??;
        report_skipped(count, &names);
        return Ok(());
    }
}

/// Blocking reader of received chunks.
struct Coming {
    parts: mpsc::Receiver<io::Result<Bytes>>,
    part: Bytes,
}

impl Read for Coming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part?,
                None => return Ok(0),
            }
        }
        let count = self.part.len().min(buffer.len());
        self.part
            .copy_to_slice(buffer.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Unpacks an archive; returns the number of skipped entries and the first of their names.
fn unpack(
    parts: mpsc::Receiver<io::Result<Bytes>>,
    top: &Path,
) -> Result<(u64, Vec<String>), Error> {
    match fs::create_dir(top) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| unwritable(top, &error))?,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(top, flags, Mode::empty());
    let mut tree = Tree {
        top: opened.map_err(|errno| unwritable(top, &errno.into()))?,
        known: None,
        modes: HashMap::new(),
        links: Vec::new(),
        left_out: (0, Vec::new()),
    };
    let part = Bytes::new();
    let mut archive = Archive::new(Coming { parts, part });
    let broken = |error: io::Error| {
        let message = format!("the archive is broken: {error}");
        Error::new(Code::Internal, message).remedy("copy it again")
    };
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = entry.path_bytes().into_owned();
        let name = Path::new(OsStr::from_bytes(&name)).to_owned();
        let placed = tree.place(&name, &mut entry);
        placed.map_err(|error| unwritable(&top.join(&name), &error))?;
    }
    tree.finish().map_err(|error| unwritable(top, &error))?;
    Ok(tree.left_out)
}

struct Tree {
    top: OwnedFd,
    /// The most recently opened directory, as a cache: most entries follow others of the same
    /// directory.
    known: Option<(PathBuf, OwnedFd)>,
    /// Modes of directories, which are set after their contents are complete.
    modes: HashMap<PathBuf, u32>,
    links: Vec<(PathBuf, PathBuf)>,
    left_out: (u64, Vec<String>),
}

impl Tree {
    fn place(&mut self, name: &Path, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        let Some(below) = plain_parts(name) else {
            self.leave_out(name, "not a name below it");
            return Ok(());
        };
        let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory {
            self.directory(&below)?;
            self.modes.insert(below, mode);
            return Ok(());
        }
        let Some(last) = below.file_name().map(OsStr::to_owned) else {
            self.leave_out(name, "no name");
            return Ok(());
        };
        let parent = below.parent().unwrap_or(Path::new("")).to_owned();
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let directory = self.directory(&parent)?;
                let mut file = create(directory, &last)?;
                io::copy(entry, &mut file)?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                let target = PathBuf::from(OsStr::from_bytes(&target));
                self.links.push((below, target));
            }
            EntryType::Link => self.join(name, &parent, &last, entry)?,
            _ => self.leave_out(name, "a special file"),
        }
        Ok(())
    }

    /// Creates a hard link to a file that was unpacked before.
    fn join(
        &mut self,
        name: &Path,
        parent: &Path,
        last: &OsStr,
        entry: &Entry<'_, impl Read>,
    ) -> io::Result<()> {
        let target = entry.link_name_bytes().unwrap_or_default();
        let target = plain_parts(Path::new(OsStr::from_bytes(&target)));
        let Some((target, file)) = target.and_then(|target| {
            let file = target.file_name()?.to_owned();
            Some((target, file))
        }) else {
            self.leave_out(name, "a link out of it");
            return Ok(());
        };
        let from = self.directory(target.parent().unwrap_or(Path::new("")))?;
        let from = from.try_clone()?;
        let to = self.directory(parent)?;
        remove(to, last)?;
        rustix::fs::linkat(&from, &*file, to, last, AtFlags::empty())?;
        Ok(())
    }

    /// Opens a directory below the target and creates missing components. Links are not followed.
    fn directory(&mut self, below: &Path) -> io::Result<&OwnedFd> {
        let known = self.known.as_ref().is_some_and(|(path, _)| path == below);
        if !known {
            let mut at = self.top.try_clone()?;
            for part in below.components() {
                at = enter(&at, part.as_os_str())?;
            }
            self.known = None;
            return Ok(&self.known.insert((below.to_owned(), at)).1);
        }
        match &self.known {
            Some((_, directory)) => Ok(directory),
            None => Ok(&self.top),
        }
    }

    /// Creates the symbolic links, and sets the modes of directories.
    fn finish(&mut self) -> io::Result<()> {
        for (below, target) in std::mem::take(&mut self.links) {
            let Some(last) = below.file_name() else {
                continue;
            };
            let parent = below.parent().unwrap_or(Path::new(""));
            let directory = self.directory(parent)?;
            remove(directory, last)?;
            rustix::fs::symlinkat(&target, directory, last)?;
        }
        let mut modes: Vec<_> = std::mem::take(&mut self.modes).into_iter().collect();
        // Deepest first: a directory without search permission would make those below it
        // unreachable.
        modes.sort_by_key(|(below, _)| std::cmp::Reverse(below.components().count()));
        for (below, mode) in modes {
            let directory = self.directory(&below)?;
            rustix::fs::fchmod(directory, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    fn leave_out(&mut self, name: &Path, why: &str) {
        self.left_out.0 += 1;
        if self.left_out.1.len() < 10 {
            let name = plain(&name.to_string_lossy());
            self.left_out.1.push(format!("{name} ({why})"));
        }
    }
}

/// Splits a path into normal components; `.` is skipped.
fn plain_parts(path: &Path) -> Option<PathBuf> {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(parts)
}

fn enter(at: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(at, name, flags, Mode::empty());
    match open() {
        Err(Errno::NOENT) => {
            match rustix::fs::mkdirat(at, name, Mode::RWXU) {
                Err(Errno::EXIST) | Ok(()) => {}
                Err(errno) => return Err(errno.into()),
            }
            Ok(open()?)
        }
        opened => Ok(opened?),
    }
}

/// Creates a new file and replaces an existing entry of that name.
fn create(directory: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    let opened = match open() {
        Err(Errno::EXIST) => {
            remove(directory, name)?;
            open()
        }
        opened => opened,
    };
    Ok(File::from(opened?))
}

fn remove(directory: impl AsFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) | Ok(()) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
