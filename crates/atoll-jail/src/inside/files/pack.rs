//! Streams a file, or a directory with its contents, as a tar archive into the pipe.
//!
//! Symbolic links below the top are packed as links and not followed. Unreadable entries, entries that are removed
//! meanwhile, devices, sockets and FIFOs are skipped, as `tar` does. Memory is bounded by the names of one directory and a
//! fixed number of hard links, independent of the size of the tree.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use tar::{EntryType, Header};

use super::{Answer, At, Failed, entry, say};
use crate::wire::Failure;

const BLOCK: usize = 512;
/// Maximum number of remembered files with several names.
const MOST_LINKED: usize = 1 << 16;

/// Sends the description of the source, then packs it.
pub(super) fn pack(path: &Path, answer: &Answer, data: Option<OwnedFd>) -> Result<(), Failed> {
    let Some(pipe) = data else {
        return Err(Failed::new(Failure::Kernel, path));
    };
    let found = fs::metadata(path).at(path)?;
    let mut packing = Packing {
        out: BufWriter::with_capacity(1 << 17, File::from(pipe)),
        linked: HashMap::new(),
    };
    // Errors about the top directory are reported before anything is sent.
    let packed = if found.is_dir() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(path, flags, Mode::empty()).at(path)?;
        say(answer, vec![entry(path, path.as_os_str(), &found)])?;
        packing.tree(&top)
    } else if found.is_file() {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).at(path)?;
        say(answer, vec![entry(path, path.as_os_str(), &found)])?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        packing.file(name, &File::from(file))
    } else {
        return Err(Failed::new(Failure::NotAFile, path));
    };
    match packed.and_then(|()| packing.finish()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        packed => packed.at(path),
    }
}

struct Packing {
    out: BufWriter<File>,
    /// First names in the archive of files with several names.
    linked: HashMap<(u64, u64), Vec<u8>>,
}

impl Packing {
    fn tree(&mut self, top: &OwnedFd) -> io::Result<()> {
        // Stack of directories below the top.
        let mut waiting = vec![Vec::new()];
        while let Some(name) = waiting.pop() {
            let Some(directory) = passable(open(top, &name, OFlags::DIRECTORY))? else {
                continue;
            };
            let found = File::from(directory.try_clone()?).metadata()?;
            self.entry(
                &[b"./", &*name].concat(),
                EntryType::Directory,
                &found,
                b"",
                0,
            )?;
            let mut names = Vec::new();
            for entry in rustix::fs::Dir::read_from(&directory)? {
                let entry = entry?;
                let last = entry.file_name().to_bytes();
                if last != b"." && last != b".." {
                    names.push(last.to_vec());
                }
            }
            names.sort_unstable();
            let mut below = Vec::new();
            for last in names {
                let name = if name.is_empty() {
                    last
                } else {
                    [&*name, b"/", &*last].concat()
                };
                if self.below(top, &name)? {
                    below.push(name);
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Packs an entry; true for a directory, whose contents are packed later.
    fn below(&mut self, top: &OwnedFd, name: &[u8]) -> io::Result<bool> {
        // Not opened: opening a FIFO or a device can have side effects.
        let Some(known) = passable(open(top, name, OFlags::PATH | OFlags::NOFOLLOW))? else {
            return Ok(false);
        };
        let known = File::from(known);
        let found = known.metadata()?;
        let packed = [b"./", name].concat();
        if found.is_symlink() {
            let target = rustix::fs::readlinkat(known.as_fd(), c"", Vec::new())?;
            self.entry(&packed, EntryType::Symlink, &found, target.as_bytes(), 0)?;
        } else if found.is_file()
            && let Some(file) = passable(open(top, name, OFlags::NONBLOCK | OFlags::NOFOLLOW))?
        {
            self.file(&packed, &File::from(file))?;
        }
        Ok(found.is_dir())
    }

    fn file(&mut self, name: &[u8], file: &File) -> io::Result<()> {
        let found = file.metadata()?;
        if !found.is_file() {
            return Ok(());
        }
        if found.nlink() > 1 {
            let id = (found.dev(), found.ino());
            if let Some(first) = self.linked.get(&id).cloned() {
                return self.entry(name, EntryType::Link, &found, &first, 0);
            }
            if self.linked.len() < MOST_LINKED {
                self.linked.insert(id, name.to_vec());
            }
        }
        let size = found.len();
        self.entry(name, EntryType::Regular, &found, b"", size)?;
        // The header contains the size: a file that grows meanwhile is truncated, one that shrinks is padded with zeros.
        let copied = io::copy(&mut file.take(size), &mut self.out)?;
        let missing = size - copied;
        io::copy(&mut io::repeat(0).take(missing), &mut self.out)?;
        self.pad(size)
    }

    fn entry(
        &mut self,
        name: &[u8],
        kind: EntryType,
        found: &fs::Metadata,
        link: &[u8],
        size: u64,
    ) -> io::Result<()> {
        let slash: &[u8] = match kind {
            EntryType::Directory if !name.ends_with(b"/") => b"/",
            _ => b"",
        };
        let name = [name, slash].concat();
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(found.mode() & 0o7777);
        header.set_uid(found.uid().into());
        header.set_gid(found.gid().into());
        header.set_mtime(found.mtime().max(0).cast_unsigned());
        header.set_size(size);
        if let Some(gnu) = header.as_gnu_mut() {
            if !place(&mut gnu.name, &name) {
                self.long(EntryType::GNULongName, &name)?;
            }
            if !place(&mut gnu.linkname, link) {
                self.long(EntryType::GNULongLink, link)?;
            }
        }
        self.header(&mut header)
    }

    /// Writes a long name as a GNU entry before its header.
    fn long(&mut self, kind: EntryType, name: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        let size = name.len() as u64 + 1;
        header.set_size(size);
        if let Some(gnu) = header.as_gnu_mut() {
            place(&mut gnu.name, b"././@LongLink");
        }
        self.header(&mut header)?;
        self.out.write_all(name)?;
        self.out.write_all(&[0])?;
        self.pad(size)
    }

    fn header(&mut self, header: &mut Header) -> io::Result<()> {
        header.set_cksum();
        self.out.write_all(header.as_bytes())
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        let missing = size.next_multiple_of(BLOCK as u64) - size;
        self.out.write_all(&[0; BLOCK][..missing as usize])
    }

    fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()
    }
}

/// Writes a name to a header field, truncated if it is too long; true if it fits.
fn place(field: &mut [u8], name: &[u8]) -> bool {
    let fits = name.len().min(field.len());
    field[..fits].copy_from_slice(&name[..fits]);
    name.len() <= field.len()
}

/// Opens a name below the top without following symbolic links.
fn open(top: &OwnedFd, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // A link as last component is opened itself, with `PATH` and `NOFOLLOW`.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let name = if name.is_empty() { b"." } else { name };
    let flags = flags | OFlags::CLOEXEC;
    rustix::fs::openat2(top, name, flags, Mode::empty(), resolve)
}

/// `None` for entries that are skipped: unreadable or removed ones.
fn passable(opened: rustix::io::Result<OwnedFd>) -> rustix::io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(
            Errno::ACCESS
            | Errno::PERM
            | Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::NXIO
            | Errno::XDEV
            | Errno::AGAIN,
        ) => Ok(None),
        Err(error) => Err(error),
    }
}
