//! Checks directories whose path in the tree may be outdated.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::add_watch::open;
use super::{Place, Watcher};

/// Maximum delay between a rename and its event, unless the machine is suspended.
const LATE: Duration = Duration::from_secs(2);
/// Maximum remembered directories: more than can be checked within the delay.
const RECENT: usize = 65_536;

/// A recent observation of a directory's path.
pub(super) enum Seen {
    /// The directory was found at the path.
    Found(i32),
    /// An event named the path, and no directory was found.
    Missed(Place),
    /// An event reported a move to or from this path.
    Reported(Place),
}

impl Watcher<'_> {
    pub(super) fn remember(&mut self, seen: Seen) {
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((Instant::now(), seen));
    }

    /// Marks recent observations as uncertain after a rename event: the rename may have happened before
    /// them.
    fn distrust_recent(&mut self, renamed_at: Instant) {
        for (at, seen) in &self.recent {
            if *at + LATE < renamed_at {
                continue;
            }
            match seen {
                Seen::Found(watch) if self.tree.has(*watch) => {
                    self.suspects.insert(*watch);
                }
                Seen::Missed(place) if self.tree.has(place.0) => {
                    self.missed.insert(place.clone());
                }
                Seen::Reported(place) if self.tree.has(place.0) => {
                    self.places.insert(place.clone());
                }
                _ => {}
            }
        }
        let now = Instant::now();
        self.recent.retain(|(at, _)| *at + LATE >= now);
    }

    /// Watch of the directory that is at a path now.
    fn directory_at(&self, path: &[u8]) -> rustix::io::Result<i32> {
        let full = self.top.join(OsStr::from_bytes(path));
        open(&full, OFlags::NOFOLLOW).and_then(|directory| self.add(&directory))
    }

    /// Whether no pending event can explain a difference.
    fn nothing_waits(&mut self) -> bool {
        self.await_event();
        self.fetch();
        self.queue.is_empty()
    }

    /// Waits for an event that the kernel is about to queue.
    pub(super) fn await_event(&self) {
        let mut ready = [PollFd::new(&self.inotify, PollFlags::IN)];
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        };
        let _ = rustix::event::poll(&mut ready, Some(&moment));
    }

    /// Called with an empty queue: if a directory is not at its path, the tree is wrong.
    pub(super) fn look_again(&mut self) -> std::io::Result<()> {
        if self.doubt {
            return self.start_anew();
        }
        if let Some(renamed_at) = self.moved.take() {
            self.distrust_recent(renamed_at);
        }
        for watch in std::mem::take(&mut self.suspects) {
            let Some(path) = self.tree.path(watch, b"") else {
                continue;
            };
            if self.directory_at(&path) != Ok(watch) {
                if self.nothing_waits() {
                    return self.start_anew();
                }
                // An event arrived during the check.
                self.suspects.insert(watch);
            }
        }
        for place in std::mem::take(&mut self.places) {
            if self.missed.contains(&place) {
                continue;
            }
            let Some(path) = self.tree.path(place.0, &place.1) else {
                continue;
            };
            let same = match (self.directory_at(&path), self.tree.child(place.0, &place.1)) {
                (Ok(found), known) => known == Some(found) || (known.is_none() && self.limited),
                (Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP), known) => known.is_none(),
                // The state of the directory cannot be read.
                (Err(_), _) => true,
            };
            if !same {
                if self.nothing_waits() {
                    return self.start_anew();
                }
                self.places.insert(place);
            }
        }
        for (parent, name) in std::mem::take(&mut self.missed) {
            // If the directory is not there now, it was removed: a move would have an event.
            if self.tree.has(parent) && self.tree.child(parent, &name).is_none() {
                self.enter(parent, &name, true)?;
                self.fetch();
                if self.queue.is_empty() {
                    self.missed.remove(&(parent, name));
                }
            }
        }
        Ok(())
    }
}
