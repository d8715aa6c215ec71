//! What may be elsewhere than the tree says, and how that is found out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::add_watch::open;
use super::{Place, Watcher};

/// So long after a rename it is told at the latest, unless the machine stands still.
const LATE: Duration = Duration::from_secs(2);
/// How many directories are remembered for that: more than can be looked at meanwhile.
const RECENT: usize = 65_536;

/// A directory's place that was looked at or told of.
pub(super) enum Seen {
    /// It was found there.
    Found(i32),
    /// It was told of and not found.
    Missed(Place),
    /// It came there or went from there.
    Told(Place),
}

impl Watcher<'_> {
    pub(super) fn remember(&mut self, seen: Seen) {
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((Instant::now(), seen));
    }

    /// A rename was told: it may have been done before what was looked for shortly before that, however
    /// long it took to come to it in the queue.
    fn distrust_recent(&mut self, told: Instant) {
        for (at, seen) in &self.recent {
            if *at + LATE < told {
                continue;
            }
            match seen {
                Seen::Found(watch) if self.tree.has(*watch) => {
                    self.suspects.insert(*watch);
                }
                Seen::Missed(place) if self.tree.has(place.0) => {
                    self.missed.insert(place.clone());
                }
                Seen::Told(place) if self.tree.has(place.0) => {
                    self.places.insert(place.clone());
                }
                _ => {}
            }
        }
        let now = Instant::now();
        self.recent.retain(|(at, _)| *at + LATE >= now);
    }

    /// The watch of the directory that is at a path now.
    fn directory_at(&self, path: &[u8]) -> rustix::io::Result<i32> {
        let full = self.top.join(OsStr::from_bytes(path));
        open(&full, OFlags::NOFOLLOW).and_then(|directory| self.add(&directory))
    }

    /// Whether no event is there or about to come that would tell why what was looked at is different.
    fn nothing_waits(&mut self) -> bool {
        self.await_event();
        self.fetch();
        self.queue.is_empty()
    }

    /// The kernel tells a moment after.
    pub(super) fn await_event(&self) {
        let mut ready = [PollFd::new(&self.inotify, PollFlags::IN)];
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        };
        let _ = rustix::event::poll(&mut ready, Some(&moment));
    }

    /// The queue is empty: everything is where the tree says, or the tree is wrong.
    pub(super) fn look_again(&mut self) -> std::io::Result<()> {
        if self.doubt {
            return self.start_anew();
        }
        if let Some(told) = self.moved.take() {
            self.distrust_recent(told);
        }
        for watch in std::mem::take(&mut self.suspects) {
            let Some(path) = self.tree.path(watch, b"") else {
                continue;
            };
            if self.directory_at(&path) != Ok(watch) {
                if self.nothing_waits() {
                    return self.start_anew();
                }
                // Something happened while we looked.
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
                // Nothing to be known about it.
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
            // Gone for good, if it is not there now: otherwise an event would say where it is.
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
