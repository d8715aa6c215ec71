//! The queue of inotify events, in the kernel's order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::time::Instant;

use rustix::fs::inotify::{self, ReadFlags};

use super::Watcher;
use super::recheck::Seen;

/// Maximum number of events that were read and not interpreted: four times the size of the kernel's queue.
pub(super) const QUEUE: usize = 65_536;
/// Maximum distance between the two events of a rename, which are normally adjacent.
const APART: usize = 64;

/// One inotify event.
pub(super) struct Raw {
    pub(super) number: u64,
    pub(super) watch: i32,
    pub(super) what: ReadFlags,
    pub(super) cookie: u32,
    pub(super) name: Vec<u8>,
}

impl Raw {
    pub(super) fn directory(&self) -> bool {
        self.what.contains(ReadFlags::ISDIR)
    }

    pub(super) fn moves_directory(&self) -> bool {
        self.directory()
            && self
                .what
                .intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO)
    }
}

/// Names reported when a new directory was read; their events may still be in the queue.
#[derive(Default)]
pub(super) struct ReportedNames {
    pub(super) names: HashMap<i32, HashSet<Vec<u8>>>,
    /// Number of the event up to which the names of each directory are valid; in order.
    pub(super) until: VecDeque<(u64, i32)>,
}

impl ReportedNames {
    pub(super) fn take(&mut self, watch: i32, name: &[u8]) -> bool {
        self.names
            .get_mut(&watch)
            .is_some_and(|names| names.remove(name))
    }

    pub(super) fn pass(&mut self, number: u64) {
        while let Some((until, watch)) = self.until.front().copied()
            && until < number
        {
            self.until.pop_front();
            self.names.remove(&watch);
        }
    }
}

impl Watcher<'_> {
    /// Reads the events that are available.
    pub(super) fn fetch(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut left = rustix::io::ioctl_fionread(&self.inotify).unwrap_or(0);
        // An event has 16 bytes and its name. Later events can wait, but events that were read must not be dropped,
        // whatever their number.
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

    pub(super) fn next(&mut self) -> Option<Raw> {
        let raw = self.queue.pop_front()?;
        self.moving -= usize::from(raw.moves_directory());
        self.reported.pass(raw.number);
        Some(raw)
    }

    /// Removes the second event of a rename from the queue.
    pub(super) fn other_half(&mut self, cookie: u32) -> Option<Raw> {
        let found = |queue: &VecDeque<Raw>| {
            queue
                .iter()
                .take(APART)
                .position(|raw| raw.cookie == cookie && raw.what.contains(ReadFlags::MOVED_TO))
        };
        let index = found(&self.queue).or_else(|| {
            if self.queue.len() < APART {
                // The kernel queues both together, but a read may have occurred in between.
                self.await_event();
                self.fetch();
            }
            found(&self.queue)
        })?;
        let raw = self.queue.remove(index)?;
        self.moving -= usize::from(raw.moves_directory());
        if self.recursive && raw.directory() {
            self.remember(Seen::Reported((raw.watch, raw.name.clone())));
        }
        self.tree.has(raw.watch).then_some(raw)
    }
}
