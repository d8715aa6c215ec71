//! Adds watches for a directory and everything below it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Watcher;
use super::queue::{QUEUE, ReportedNames};
use super::recheck::Seen;
use super::tree::Tree;
use crate::wire::{FromHelper, WatchChange};

/// Number of directories after which an empty message is sent: the server kills a silent helper.
const ALIVE: usize = 4096;

impl Watcher<'_> {
    /// Watches the top and everything below it, without reports.
    pub(super) fn plant(&mut self) -> std::io::Result<()> {
        let directory = open(&self.top, OFlags::empty())?;
        self.root = self.add(&directory)?;
        self.tree.plant(self.root);
        self.fill(self.root, &directory, false, &mut Vec::new())?;
        Ok(())
    }

    pub(super) fn add(&self, directory: &OwnedFd) -> rustix::io::Result<i32> {
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
        // By descriptor, so that the watched directory is the one that is read.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        inotify::add_watch(&self.inotify, path, what)
    }

    /// Watches a directory and everything below it; reports the entries of a new one.
    pub(super) fn enter(&mut self, parent: i32, name: &[u8], tell: bool) -> std::io::Result<()> {
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
                self.say(WatchChange::Overflow)?;
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
                // Another directory has replaced it; the event of its move is still in the queue.
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
            self.remember(Seen::Reported((parent, name)));
            self.fetch();
            if self.moving > 0 {
                self.suspects.insert(watch);
            }
        }
        Ok(())
    }

    /// Reads a watched directory.
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
                    self.say(WatchChange::Overflow)?;
                    continue;
                };
                let directory = kind.is_dir();
                // The contents may have been written before the watch existed.
                let written = kind.is_file() && entry.metadata().is_ok_and(|found| found.len() > 0);
                self.say(WatchChange::Create {
                    path: path.clone(),
                    directory,
                })?;
                if written {
                    self.say(WatchChange::Write { path })?;
                }
                // Without the remembered name, the entry may be reported twice.
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
            self.reported.names.insert(watch, names);
            self.reported.until.push_back((self.read, watch));
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
        self.say(WatchChange::Limit)
    }

    pub(super) fn drop_tree(&mut self, watch: i32) {
        for gone in self.tree.cut(watch) {
            self.doubt |= self.suspects.remove(&gone);
            let _ = inotify::remove_watch(&self.inotify, gone);
        }
    }

    /// Starts again: all reports so far may be outdated.
    pub(super) fn start_anew(&mut self) -> std::io::Result<()> {
        self.inotify = new_inotify()?;
        self.tree = Tree::default();
        self.reported = ReportedNames::default();
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
            return self.say(WatchChange::End);
        }
        // Reported at the end: a list after the event is not older than the watch.
        self.say(WatchChange::Overflow)
    }
}

pub(super) fn new_inotify() -> rustix::io::Result<OwnedFd> {
    let made = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
    // The limit of inotify instances is reported like the limit of watches.
    made.map_err(|error| match error {
        Errno::MFILE => Errno::NOSPC,
        _ => error,
    })
}

pub(super) fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let always = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, always | flags, Mode::empty())
}
