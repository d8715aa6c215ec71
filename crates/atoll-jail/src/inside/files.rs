//! File operations, each in a helper process: a clone of PID 1 that changes to the requested user, executes the operation
//! in the sandbox, and exits. Paths are resolved in the sandbox with the rights of the sandbox. Data is transferred
//! through a pipe that the server created, so no descriptor leaves the sandbox.

mod attributes;
mod copy;
mod describe;
mod pack;
mod search;
mod transfer;
mod unpack;
mod watch;

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use super::users::{self, Identity};
use crate::sys::{self, Cloned};
use crate::wire::{
    Authority, Boot, Channel, Entry, Failure, FileCall, FileOp, FromHelper, ToHelper,
};

type Answer = Channel<FromHelper, ToHelper>;

/// Failure of an operation, with its path.
struct Failed {
    why: Failure,
    errno: i32,
    path: PathBuf,
}

impl Failed {
    fn new(why: Failure, path: &Path) -> Self {
        let errno = match why {
            Failure::NotADirectory => libc::ENOTDIR,
            Failure::User => libc::ENOENT,
            Failure::NotAFile | Failure::Kernel | Failure::Archive => libc::EINVAL,
        };
        Self {
            why,
            errno,
            path: path.into(),
        }
    }
}

/// Adds the path to an I/O error.
trait At<T> {
    fn at(self, path: &Path) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, Failed> {
        self.map_err(|error| Failed {
            why: Failure::Kernel,
            errno: error.into().raw_os_error().unwrap_or(libc::EIO),
            path: path.into(),
        })
    }
}

/// Starts a helper and returns its pid. Descriptors: the response socket, and the data pipe if there is one. If the
/// helper cannot be started, PID 1 responds instead.
pub(super) fn start(boot: &Boot, call: &FileCall, descriptors: Vec<OwnedFd>) -> Option<i32> {
    let mut descriptors = descriptors.into_iter();
    let answer = descriptors.next()?;
    let data = descriptors.next();
    // SAFETY: PID 1 has one thread.
    match unsafe { sys::fork() } {
        Ok(Cloned::Parent(pid)) => Some(pid),
        Err(error) => {
            let failed = FromHelper::Failed {
                why: Failure::Kernel,
                errno: error.raw_os_error().unwrap_or(libc::EIO),
                path: Vec::new(),
            };
            let _ = Answer::new(answer).send(&failed, &[]);
            None
        }
        Ok(Cloned::Child) => {
            let Some((answer, data)) = keep_only(answer, data) else {
                sys::exit(1)
            };
            let answer = Answer::new(answer);
            let last = match work(boot, call, &answer, data) {
                Ok(truncated) => FromHelper::Done { truncated },
                Err(Failed { why, errno, path }) => FromHelper::Failed {
                    why,
                    errno,
                    path: path.into_os_string().into_vec(),
                },
            };
            let _ = answer.send(&last, &[]);
            sys::exit(0)
        }
    }
}

/// Closes all descriptors of PID 1 except the two of the helper.
fn keep_only(answer: OwnedFd, data: Option<OwnedFd>) -> Option<(OwnedFd, Option<OwnedFd>)> {
    let _ = rustix::process::setsid();
    sys::unblock_signals();
    // SIGPIPE would end the helper before it could report the reason.
    // SAFETY: ignoring a signal has no memory effects.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let high = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 10).ok();
    let (answer, data) = (high(answer)?, data.map(high));
    sys::place(answer.as_fd(), 3).ok()?;
    if let Some(data) = &data {
        sys::place(data.as_ref()?.as_fd(), 4).ok()?;
    }
    let piped = data.is_some();
    std::mem::forget((answer, data));
    sys::close_from(if piped { 5 } else { 4 }).ok()?;
    // SAFETY: these numbers were just placed and have no other owner.
    unsafe {
        use std::os::fd::FromRawFd;
        Some((
            OwnedFd::from_raw_fd(3),
            piped.then(|| OwnedFd::from_raw_fd(4)),
        ))
    }
}

/// Context of an operation: the user, and whose rights apply.
struct Caller {
    identity: Identity,
    /// Owner of new files; `None` if they belong to the user anyway.
    owner: Option<(u32, u32)>,
}

impl Caller {
    fn path(&self, path: &[u8]) -> PathBuf {
        PathBuf::from(OsString::from_vec(absolute(
            path,
            self.identity.home.as_bytes(),
        )))
    }

    /// Sets the owner of a new object.
    fn own(&self, path: &Path) -> Result<(), Failed> {
        match self.owner {
            Some((uid, gid)) => lchown(path, Some(uid), Some(gid)).at(path),
            None => Ok(()),
        }
    }

    /// Creates a directory and its missing parents.
    fn make_directories(&self, path: &Path) -> Result<(), Failed> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(Failed::new(Failure::NotADirectory, path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = path.parent() {
                    self.make_directories(parent)?;
                }
                match fs::create_dir(path) {
                    // Another process has created it meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    made => made.at(path).and_then(|()| self.own(path)),
                }
            }
            Err(error) => Err(error).at(path),
        }
    }
}

/// Relative paths and `~` start at the user's home.
pub(super) fn absolute(path: &[u8], home: &[u8]) -> Vec<u8> {
    match path {
        [b'/', ..] => path.to_vec(),
        [] | b"~" => home.to_vec(),
        [b'~', b'/', rest @ ..] | rest => [home, b"/", rest].concat(),
    }
}

/// Executes the operation; true if a list is incomplete.
fn work(
    boot: &Boot,
    call: &FileCall,
    answer: &Answer,
    data: Option<OwnedFd>,
) -> Result<bool, Failed> {
    let unknown = || Failed::new(Failure::User, Path::new(&call.user));
    let identity = users::find(&call.user, &boot.user).ok_or_else(unknown)?;
    let owner = match call.authority {
        Authority::User => {
            sys::set_ids(identity.uid, identity.gid, &identity.groups)
                .at(Path::new(&identity.name))?;
            None
        }
        Authority::Root => {
            sys::set_capabilities(boot.capabilities, boot.capabilities).at(Path::new("/"))?;
            Some((identity.uid, identity.gid))
        }
    };
    let caller = Caller { identity, owner };
    match &call.work {
        FileOp::Read {
            path,
            offset,
            length,
        } => {
            transfer::read(&caller.path(path), *offset, *length, answer, data)?;
        }
        FileOp::Write {
            path,
            mode,
            in_place,
            parents,
        } => {
            let path = caller.path(path);
            if *parents && let Some(parent) = path.parent() {
                caller.make_directories(parent)?;
            }
            transfer::write(&caller, &path, *mode, *in_place, answer, data)?;
        }
        FileOp::Stat { path, follow } => {
            let path = caller.path(path);
            let found = if *follow {
                fs::metadata(&path)
            } else {
                fs::symlink_metadata(&path)
            };
            say(
                answer,
                vec![entry(&path, path.as_os_str(), &found.at(&path)?)],
            )?;
        }
        FileOp::List { path, depth, limit } => {
            return list(&caller.path(path), *depth, *limit, answer);
        }
        FileOp::Mkdir {
            path,
            parents,
            mode,
        } => {
            let path = caller.path(path);
            if *parents {
                if path.is_dir() {
                    return Ok(false);
                }
                if let Some(parent) = path.parent() {
                    caller.make_directories(parent)?;
                }
            }
            let mode = mode & 0o7777;
            fs::create_dir(&path).at(&path)?;
            // An unchanged mode must not cause an inotify event.
            if fs::symlink_metadata(&path).at(&path)?.mode() & 0o7777 != mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).at(&path)?;
            }
            caller.own(&path)?;
        }
        FileOp::Remove { path, recursive } => {
            let path = caller.path(path);
            let directory = fs::symlink_metadata(&path).at(&path)?.is_dir();
            match (directory, recursive) {
                (false, _) => fs::remove_file(&path),
                (true, false) => fs::remove_dir(&path),
                (true, true) => fs::remove_dir_all(&path),
            }
            .at(&path)?;
        }
        FileOp::Rename { from, to, replace } => {
            let (from, to) = (caller.path(from), caller.path(to));
            let flags = if *replace {
                rustix::fs::RenameFlags::empty()
            } else {
                rustix::fs::RenameFlags::NOREPLACE
            };
            // Check `from` first: a remaining error is about `to`.
            fs::symlink_metadata(&from).at(&from)?;
            rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &to, flags)
                .at(&to)?;
        }
        FileOp::Copy { from, to, replace } => {
            copy::copy(&caller, &caller.path(from), &caller.path(to), *replace)?;
        }
        FileOp::Watch {
            path,
            recursive,
            limit,
        } => watch::watch(&caller.path(path), *recursive, *limit, answer)?,
        FileOp::Pack { path } => pack::pack(&caller.path(path), answer, data)?,
        FileOp::Unpack { path } => unpack::unpack(&caller, &caller.path(path), answer, data)?,
        FileOp::Search {
            path,
            name,
            text,
            limit,
        } => {
            let limit = *limit;
            let wanted = search::Wanted { name, text, limit };
            return search::search(&caller.path(path), &wanted, answer);
        }
        FileOp::Describe {
            path,
            depth,
            limit,
            attributes,
        } => {
            let describer = describe::Describer {
                names: users::Names::read(&boot.user),
                prefix: attributes,
                answer,
            };
            let path = caller.path(path);
            match depth {
                0 => describer.one(&path)?,
                depth => return describer.below(&path, *depth, *limit),
            }
        }
        FileOp::Put { path, attributes } => {
            let path = caller.path(path);
            if let Some(parent) = path.parent() {
                caller.make_directories(parent)?;
            }
            transfer::put(&caller, &path, attributes, answer, data)?;
        }
        FileOp::Chmod { path, mode } => {
            let path = caller.path(path);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777)).at(&path)?;
        }
        FileOp::Chown { path, owner, group } => {
            let path = caller.path(path);
            let unknown = |name: &str| Failed::new(Failure::User, Path::new(name));
            let uid = match owner.as_str() {
                "" => None,
                name => Some(
                    users::find(name, &boot.user)
                        .ok_or_else(|| unknown(name))?
                        .uid,
                ),
            };
            let gid = match group.as_str() {
                "" => None,
                name => Some(users::find_group(name).ok_or_else(|| unknown(name))?),
            };
            std::os::unix::fs::chown(&path, uid, gid).at(&path)?;
        }
    }
    Ok(false)
}

fn say(answer: &Answer, entries: Vec<Entry>) -> Result<(), Failed> {
    answer
        .send(&FromHelper::Entries(entries), &[])
        .at(Path::new(""))
}

fn entry(path: &Path, name: &OsStr, found: &fs::Metadata) -> Entry {
    let link = if found.is_symlink() {
        fs::read_link(path).unwrap_or_default()
    } else {
        PathBuf::new()
    };
    Entry {
        path: name.as_bytes().to_vec(),
        mode: found.mode(),
        uid: found.uid(),
        gid: found.gid(),
        size: found.size(),
        modified: found
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(found.mtime_nsec()),
        link: link.into_os_string().into_vec(),
    }
}

/// Describes the entries below a directory, parents before children, sorted by name.
fn list(top: &Path, depth: u32, limit: u32, answer: &Answer) -> Result<bool, Failed> {
    const TOGETHER: usize = 6 * 1024;
    if !fs::metadata(top).at(top)?.is_dir() {
        return Err(Failed::new(Failure::NotADirectory, top));
    }
    let (mut sent, mut bytes, mut batch) = (0, 0, Vec::new());
    // Stack of directories to read.
    let mut waiting = vec![(PathBuf::new(), 1)];
    while let Some((relative, level)) = waiting.pop() {
        let directory = top.join(&relative);
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            // Unreadable directories below the top are listed and not entered.
            Err(_) if level > 1 => continue,
            Err(error) => return Err(error).at(&directory),
        };
        let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        let mut below = Vec::new();
        for name in names {
            let (path, name) = (directory.join(&name), relative.join(&name));
            // The entry may have been removed meanwhile.
            let Ok(found) = fs::symlink_metadata(&path) else {
                continue;
            };
            if sent == limit {
                say(answer, batch)?;
                return Ok(true);
            }
            sent += 1;
            let entry = entry(&path, name.as_os_str(), &found);
            bytes += entry.path.len() + entry.link.len() + 64;
            batch.push(entry);
            if bytes > TOGETHER {
                say(answer, std::mem::take(&mut batch))?;
                bytes = 0;
            }
            if found.is_dir() && level < depth {
                below.push((name, level + 1));
            }
        }
        waiting.extend(below.into_iter().rev());
    }
    say(answer, batch)?;
    Ok(false)
}

/// A path as a C string.
fn c_path(path: &Path) -> Result<CString, Failed> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Failed {
        why: Failure::Kernel,
        errno: libc::EINVAL,
        path: path.into(),
    })
}
