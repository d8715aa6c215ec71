//! Watches a directory with inotify. The helper exists as long as the watch.
//!
//! ```text
//! inotify ──▶ queue ──▶ interpretation, in the order of the queue ──▶ response socket
//!                          │ a new directory: watch it, then read it, then report its entries
//! ```
//!
//! Events are about the past: a directory may have moved when its event is read. A directory that could not be
//! reached, or was reached while renames were in the queue, is checked again when the queue is empty. The kernel
//! queues a rename shortly after it is done, so a rename event also concerns paths that were checked or reported
//! shortly before: each is compared with the tree. If the tree may still be wrong, the watcher reports `Overflow`
//! and starts again: reports are complete, or their loss is reported.

mod add_watch;
mod events;
mod queue;
mod recheck;
mod tree;

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{Answer, At, Failed};
use crate::wire::{Failure, FromHelper, ToHelper, WatchChange};
use add_watch::new_inotify;
use queue::{Raw, ReportedNames};
use recheck::Seen;
use tree::Tree;

/// Bytes of changes in one message.
const TOGETHER: usize = 6 * 1024;

/// A name in a directory.
type Place = (i32, Vec<u8>);

struct Watcher<'a> {
    answer: &'a Answer,
    top: PathBuf,
    recursive: bool,
    limit: usize,
    inotify: OwnedFd,
    /// Watch descriptor of the top.
    root: i32,
    tree: Tree,
    queue: VecDeque<Raw>,
    /// Number of events that were read.
    read: u64,
    /// Renames of directories in the queue.
    moving: usize,
    reported: ReportedNames,
    /// Directories that were not at the path of their event.
    missed: HashSet<Place>,
    /// Directories found while renames were in the queue.
    suspects: HashSet<i32>,
    /// Paths at which the tree may have a wrong directory.
    places: HashSet<Place>,
    /// Recent observations, with their times.
    recent: VecDeque<(Instant, Seen)>,
    /// Time of the first rename of a directory since the last recheck.
    moved: Option<Instant>,
    /// Whether the reported state may be wrong.
    doubt: bool,
    /// The last reported rename (from, to), if no change was reported since.
    renamed: Option<(Place, Place)>,
    changes: Vec<WatchChange>,
    bytes: usize,
    limited: bool,
    /// Number of directories that were read.
    entered: usize,
    ended: bool,
}

/// Watches until the server closes the call or the directory is removed.
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
        reported: ReportedNames::default(),
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
    // From now on all changes are reported.
    watcher.reply(0).at(top)?;
    watcher.run().at(top)
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
            let has_request = !ready[1].revents().is_empty();
            if has_request {
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

    /// Reports all changes up to now.
    fn drain(&mut self) -> std::io::Result<()> {
        // Repeated only if directories move meanwhile.
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

    fn say(&mut self, change: WatchChange) -> std::io::Result<()> {
        self.bytes += match &change {
            WatchChange::Rename { from, to } => from.len() + to.len(),
            WatchChange::Create { path, .. }
            | WatchChange::Write { path }
            | WatchChange::Remove { path }
            | WatchChange::Away { path }
            | WatchChange::Chmod { path } => path.len(),
            WatchChange::Overflow | WatchChange::Limit | WatchChange::End => 0,
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

    /// Handles all queued events; checks uncertain directories again.
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
            self.reported = ReportedNames::default();
            self.look_again()?;
        }
        Ok(())
    }
}
