//! Watching a directory, by inotify. The helper lives as long as the watch.
//!
//! ```text
//! inotify ──▶ queue ──▶ what it means, in the order of the queue ──▶ answer socket
//!                          │ a new directory: watch it, then read it, then tell what is in it
//! ```
//!
//! Events tell of the past: a directory may be elsewhere when its event is read. What could not be
//! reached, or was reached while renames were waiting in the queue, is looked at again when the queue
//! is empty. The kernel tells of a rename a moment after it is done, so a rename that is told now concerns what was
//! looked at or told of shortly before as well: each such place is compared with the tree. Where doubt is left the
//! watcher says `Overflow` and starts anew: what it says is complete, or it says that it is not.

mod doubt;
mod tree;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Answer, At, Failed};
use crate::wire::{Change, Failure, FromHelper, ToHelper};
use doubt::Seen;
use tree::Tree;

/// Bytes of changes sent together.
const TOGETHER: usize = 6 * 1024;
/// Events read and not understood yet; four times what the kernel keeps.
const QUEUE: usize = 65_536;
/// After so many directories the server is told that this goes on: it does not wait for who is silent.
const ALIVE: usize = 4096;
/// The two halves of a rename come one behind the other, or nearly so.
const APART: usize = 64;

/// An event as the kernel told it.
struct Raw {
    number: u64,
    watch: i32,
    what: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

impl Raw {
    fn directory(&self) -> bool {
        self.what.contains(ReadFlags::ISDIR)
    }

    fn moves_directory(&self) -> bool {
        self.directory()
            && self
                .what
                .intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO)
    }
}

/// Names told because a new directory was read, whose events may still be in the queue.
#[derive(Default)]
struct Told {
    names: HashMap<i32, HashSet<Vec<u8>>>,
    /// Up to which event each directory's names count; in order.
    until: VecDeque<(u64, i32)>,
}

impl Told {
    fn take(&mut self, watch: i32, name: &[u8]) -> bool {
        self.names
            .get_mut(&watch)
            .is_some_and(|names| names.remove(name))
    }

    fn pass(&mut self, number: u64) {
        while let Some((until, watch)) = self.until.front().copied()
            && until < number
        {
            self.until.pop_front();
            self.names.remove(&watch);
        }
    }
}

/// A name in a directory.
type Place = (i32, Vec<u8>);

struct Watcher<'a> {
    answer: &'a Answer,
    top: PathBuf,
    recursive: bool,
    limit: usize,
    inotify: OwnedFd,
    /// The watch of the top.
    root: i32,
    tree: Tree,
    queue: VecDeque<Raw>,
    /// How many events were read.
    read: u64,
    /// Renames of directories in the queue.
    moving: usize,
    told: Told,
    /// Directories that were not where their event said.
    missed: HashSet<Place>,
    /// Directories found while renames were waiting.
    suspects: HashSet<i32>,
    /// Places where the tree may have another directory than there is.
    places: HashSet<Place>,
    /// What was looked for lately, and when.
    recent: VecDeque<(Instant, Seen)>,
    /// When the first rename of a directory was read, since those were last looked at again.
    moved: Option<Instant>,
    /// What was told may be wrong.
    doubt: bool,
    /// The rename told last, if nothing was told since: from and to.
    renamed: Option<(Place, Place)>,
    changes: Vec<Change>,
    bytes: usize,
    limited: bool,
    /// How many directories were looked at.
    entered: usize,
    ended: bool,
}

/// Watches until the server goes or the directory does.
pub(super) fn watch(
    top: &Path,
    recursive: bool,
    limit: u32,
    answer: &Answer,
) -> Result<(), Failed> {
    if !fs::metadata(top).at(top)?.is_dir() {
        return Err(Failed::new(Failure::NotADirectory, top));
    }
    let mut watcher = Watcher {
        answer,
        top: top.into(),
        recursive,
        limit: limit as usize,
        inotify: new_inotify().at(top)?,
        root: 0,
        tree: Tree::default(),
        queue: VecDeque::new(),
        read: 0,
        moving: 0,
        told: Told::default(),
        missed: HashSet::new(),
        suspects: HashSet::new(),
        places: HashSet::new(),
        recent: VecDeque::new(),
        moved: None,
        doubt: false,
        renamed: None,
        changes: Vec::new(),
        bytes: 0,
        limited: false,
        entered: 0,
        ended: false,
    };
    watcher.plant().at(top)?;
    // From now on nothing is missed.
    watcher.reply(0).at(top)?;
    watcher.run().at(top)
}

fn new_inotify() -> rustix::io::Result<OwnedFd> {
    let made = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
    // Too many instances is to the caller what too many watches are.
    made.map_err(|error| match error {
        Errno::MFILE => Errno::NOSPC,
        _ => error,
    })
}

impl Watcher<'_> {
    fn run(&mut self) -> std::io::Result<()> {
        while !self.ended {
            self.settle()?;
            self.flush()?;
            let mut ready = [
                PollFd::new(&self.inotify, PollFlags::IN),
                PollFd::new(self.answer, PollFlags::IN),
            ];
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let timeout = if self.quiet() { None } else { Some(&now) };
            match rustix::event::poll(&mut ready, timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let asked = !ready[1].revents().is_empty();
            if asked {
                let Some(packet) = self.answer.receive()? else {
                    return Ok(());
                };
                if let ToHelper::Drain { token } = packet.message {
                    self.drain()?;
                    self.reply(token)?;
                }
            }
        }
        self.flush()
    }

    /// Tells all that has happened by now.
    fn drain(&mut self) -> std::io::Result<()> {
        // More than once only if directories move while they are looked for.
        for _ in 0..100 {
            self.settle()?;
            if self.ended || self.quiet() {
                break;
            }
        }
        Ok(())
    }

    fn quiet(&self) -> bool {
        let settled = self.missed.is_empty() && self.suspects.is_empty() && self.places.is_empty();
        self.queue.is_empty() && settled && self.moved.is_none() && !self.doubt
    }

    fn reply(&mut self, token: u32) -> std::io::Result<()> {
        self.flush()?;
        self.answer.send(&FromHelper::Drained { token }, &[])
    }

    fn say(&mut self, change: Change) -> std::io::Result<()> {
        self.bytes += match &change {
            Change::Rename { from, to } => from.len() + to.len(),
            Change::Create { path, .. }
            | Change::Write { path }
            | Change::Remove { path }
            | Change::Away { path }
            | Change::Chmod { path } => path.len(),
            Change::Overflow | Change::Limit | Change::End => 0,
        } + 16;
        self.changes.push(change);
        if self.bytes > TOGETHER {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.bytes = 0;
        if self.changes.is_empty() {
            return Ok(());
        }
        let changes = std::mem::take(&mut self.changes);
        self.answer.send(&FromHelper::Changes(changes), &[])
    }

    /// Reads what the kernel has now.
    fn fetch(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut left = rustix::io::ioctl_fionread(&self.inotify).unwrap_or(0);
        // An event is 16 bytes and its name; what comes after those that are there can wait. What
        // was read must not be lost, however much it is.
        while !reader.is_buffer_empty() || (left > 0 && self.queue.len() < QUEUE) {
            let Ok(event) = reader.next() else { return };
            let name = event.file_name().map(|name| name.to_bytes().to_vec());
            self.read += 1;
            let raw = Raw {
                number: self.read,
                watch: event.wd(),
                what: event.events(),
                cookie: event.cookie(),
                name: name.unwrap_or_default(),
            };
            let padded = if raw.name.is_empty() {
                0
            } else {
                (raw.name.len() / 16 + 1) * 16
            };
            left = left.saturating_sub(16 + padded as u64);
            if raw.moves_directory() {
                self.moving += 1;
                self.moved.get_or_insert_with(Instant::now);
            }
            self.queue.push_back(raw);
        }
    }

    fn next(&mut self) -> Option<Raw> {
        let raw = self.queue.pop_front()?;
        self.moving -= usize::from(raw.moves_directory());
        self.told.pass(raw.number);
        Some(raw)
    }

    /// Reads and understands everything that is there now; looks again at what was in doubt.
    fn settle(&mut self) -> std::io::Result<()> {
        self.fetch();
        let until = self.read;
        while self.queue.front().is_some_and(|raw| raw.number <= until) {
            if let Some(raw) = self.next() {
                self.understand(&raw)?;
            }
            if self.ended {
                return Ok(());
            }
        }
        self.fetch();
        if self.queue.is_empty() {
            self.told = Told::default();
            self.look_again()?;
        }
        Ok(())
    }

    fn understand(&mut self, raw: &Raw) -> std::io::Result<()> {
        if raw.what.contains(ReadFlags::QUEUE_OVERFLOW)
            || self.queue.len().max(self.missed.len()) >= QUEUE
        {
            return self.start_anew();
        }
        let gone = ReadFlags::DELETE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        if raw.watch == self.root && raw.what.intersects(gone | ReadFlags::MOVE_SELF) {
            self.ended = true;
            return self.say(Change::End);
        }
        if raw.what.intersects(gone) {
            self.drop_tree(raw.watch);
            return Ok(());
        }
        if !self.tree.has(raw.watch) {
            return Ok(());
        }
        if raw.name.is_empty() {
            if raw.watch == self.root && raw.what.contains(ReadFlags::ATTRIB) {
                return self.say(Change::Chmod { path: Vec::new() });
            }
            return Ok(());
        }
        if self.recursive && raw.directory() {
            self.remember(Seen::Told((raw.watch, raw.name.clone())));
        }
        if raw.what.contains(ReadFlags::MOVED_FROM) {
            if let Some(to) = self.other_half(raw.cookie) {
                return self.rename(raw, &to);
            }
            return self.vanish(raw, |path| Change::Away { path });
        }
        if raw.what.contains(ReadFlags::DELETE) {
            return self.vanish(raw, |path| Change::Remove { path });
        }
        if raw.what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            return self.appear(raw);
        }
        self.renamed = None;
        let Some(path) = self.tree.path(raw.watch, &raw.name) else {
            return self.say(Change::Overflow);
        };
        self.say(if raw.what.contains(ReadFlags::MODIFY) {
            Change::Write { path }
        } else {
            Change::Chmod { path }
        })
    }

    /// Takes the second half of a rename out of the queue.
    fn other_half(&mut self, cookie: u32) -> Option<Raw> {
        let found = |queue: &VecDeque<Raw>| {
            queue
                .iter()
                .take(APART)
                .position(|raw| raw.cookie == cookie && raw.what.contains(ReadFlags::MOVED_TO))
        };
        let index = found(&self.queue).or_else(|| {
            if self.queue.len() < APART {
                // The kernel tells both at once, but we may have read between.
                self.await_event();
                self.fetch();
            }
            found(&self.queue)
        })?;
        let raw = self.queue.remove(index)?;
        self.moving -= usize::from(raw.moves_directory());
        if self.recursive && raw.directory() {
            self.remember(Seen::Told((raw.watch, raw.name.clone())));
        }
        self.tree.has(raw.watch).then_some(raw)
    }

    fn rename(&mut self, from: &Raw, to: &Raw) -> std::io::Result<()> {
        let known = self.tree.child(from.watch, &from.name);
        if known.is_none() && to.directory() && self.recursive && !self.limited {
            // It was found where it is now before its event was read, and told as new; or it will be.
            self.vanish(from, |path| Change::Remove { path })?;
            return self.appear(to);
        }
        let paths = (
            self.tree.path(from.watch, &from.name),
            self.tree.path(to.watch, &to.name),
        );
        let (Some(old), Some(new)) = paths else {
            return self.say(Change::Overflow);
        };
        let place = |raw: &Raw| (raw.watch, raw.name.clone());
        let last = self.renamed.replace((place(from), place(to)));
        if last == Some((place(to), place(from))) && self.is_there(&old) {
            // An exchange. Two renames would say that one of the two is gone.
            return self.start_anew();
        }
        self.told.take(from.watch, &from.name);
        self.told.take(to.watch, &to.name);
        self.missed.remove(&place(from));
        if let Some(replaced) = self.tree.child(to.watch, &to.name)
            && known != Some(replaced)
        {
            self.drop_tree(replaced);
        }
        self.say(Change::Rename { from: old, to: new })?;
        match known {
            Some(known) if !self.tree.put(known, to.watch, &to.name) => self.start_anew(),
            _ => Ok(()),
        }
    }

    fn is_there(&self, path: &[u8]) -> bool {
        fs::symlink_metadata(self.top.join(OsStr::from_bytes(path))).is_ok()
    }

    fn vanish(&mut self, raw: &Raw, how: impl FnOnce(Vec<u8>) -> Change) -> std::io::Result<()> {
        self.told.take(raw.watch, &raw.name);
        self.missed.remove(&(raw.watch, raw.name.clone()));
        let path = self.tree.path(raw.watch, &raw.name);
        if let Some(known) = self.tree.child(raw.watch, &raw.name) {
            self.drop_tree(known);
        }
        self.say(path.map_or(Change::Overflow, how))
    }

    fn appear(&mut self, raw: &Raw) -> std::io::Result<()> {
        if self.told.take(raw.watch, &raw.name) {
            return Ok(());
        }
        let directory = raw.directory();
        let path = self.tree.path(raw.watch, &raw.name);
        let create = |path| Change::Create { path, directory };
        self.say(path.map_or(Change::Overflow, create))?;
        if directory {
            self.enter(raw.watch, &raw.name, true)?;
        }
        Ok(())
    }

    fn drop_tree(&mut self, watch: i32) {
        for gone in self.tree.cut(watch) {
            self.doubt |= self.suspects.remove(&gone);
            let _ = inotify::remove_watch(&self.inotify, gone);
        }
    }

    /// Everything may be different from what was said.
    fn start_anew(&mut self) -> std::io::Result<()> {
        self.inotify = new_inotify()?;
        self.tree = Tree::default();
        self.told = Told::default();
        self.queue.clear();
        self.moving = 0;
        self.missed.clear();
        self.suspects.clear();
        self.places.clear();
        self.recent.clear();
        (self.moved, self.doubt) = (None, false);
        self.renamed = None;
        if self.plant().is_err() {
            self.ended = true;
            return self.say(Change::End);
        }
        // Said at the end: who looks now sees nothing older than what is watched.
        self.say(Change::Overflow)
    }

    /// Watches the top and all that is below it, without a word.
    fn plant(&mut self) -> std::io::Result<()> {
        let directory = open(&self.top, OFlags::empty())?;
        self.root = self.add(&directory)?;
        self.tree.plant(self.root);
        self.fill(self.root, &directory, false, &mut Vec::new())?;
        Ok(())
    }

    fn add(&self, directory: &OwnedFd) -> rustix::io::Result<i32> {
        let what = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        // By descriptor: what is watched is what will be read.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        inotify::add_watch(&self.inotify, path, what)
    }

    /// Watches a directory and all below it; tells what is in it if it is new.
    fn enter(&mut self, parent: i32, name: &[u8], tell: bool) -> std::io::Result<()> {
        if !self.recursive {
            return Ok(());
        }
        let mut next = vec![(parent, name.to_vec())];
        while let Some((parent, name)) = next.pop() {
            self.entered += 1;
            if self.entered.is_multiple_of(ALIVE) {
                self.answer.send(&FromHelper::Changes(Vec::new()), &[])?;
            }
            let Some(path) = self.tree.path(parent, &name) else {
                self.say(Change::Overflow)?;
                continue;
            };
            if self.tree.len() >= self.limit {
                self.limit_reached()?;
                return Ok(());
            }
            let full = self.top.join(OsStr::from_bytes(&path));
            let watched = open(&full, OFlags::NOFOLLOW)
                .and_then(|directory| Ok((self.add(&directory)?, directory)));
            let (watch, directory) = match watched {
                Ok(found) => found,
                Err(Errno::NOSPC | Errno::NOMEM | Errno::NAMETOOLONG) => {
                    self.limit_reached()?;
                    continue;
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    self.remember(Seen::Missed((parent, name.clone())));
                    self.missed.insert((parent, name));
                    continue;
                }
                // The user may not read it.
                Err(_) => continue,
            };
            if let Some(old) = self.tree.child(parent, &name)
                && old != watch
            {
                // Another one took its place; where it went is still to be read.
                self.drop_tree(old);
                self.doubt = true;
            }
            if !self.tree.put(watch, parent, &name) {
                self.remember(Seen::Missed((parent, name.clone())));
                self.missed.insert((parent, name));
                continue;
            }
            self.fill(watch, &directory, tell, &mut next)?;
            self.remember(Seen::Found(watch));
            self.remember(Seen::Told((parent, name)));
            self.fetch();
            if self.moving > 0 {
                self.suspects.insert(watch);
            }
        }
        Ok(())
    }

    /// Reads a directory that is watched now.
    fn fill(
        &mut self,
        watch: i32,
        directory: &OwnedFd,
        tell: bool,
        next: &mut Vec<(i32, Vec<u8>)>,
    ) -> std::io::Result<()> {
        if !self.recursive {
            return Ok(());
        }
        let mut names = HashSet::new();
        let top = watch == self.root;
        for entry in fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?.flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let name = entry.file_name().into_vec();
            if tell {
                let Some(path) = self.tree.path(watch, &name) else {
                    self.say(Change::Overflow)?;
                    continue;
                };
                let directory = kind.is_dir();
                // What was written before anyone could see it.
                let written = kind.is_file() && entry.metadata().is_ok_and(|found| found.len() > 0);
                self.say(Change::Create {
                    path: path.clone(),
                    directory,
                })?;
                if written {
                    self.say(Change::Write { path })?;
                }
                // Without its name it may be told twice.
                if names.len() < QUEUE {
                    names.insert(name.clone());
                }
            }
            if kind.is_dir() {
                next.push((watch, name));
            }
        }
        if tell {
            self.fetch();
            self.told.names.insert(watch, names);
            self.told.until.push_back((self.read, watch));
        }
        if top {
            for (parent, name) in std::mem::take(next) {
                self.enter(parent, &name, false)?;
            }
        }
        Ok(())
    }

    fn limit_reached(&mut self) -> std::io::Result<()> {
        if std::mem::replace(&mut self.limited, true) {
            return Ok(());
        }
        self.say(Change::Limit)
    }
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let always = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, always | flags, Mode::empty())
}
