//! The queue of inotify events, in the kernel's order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::time::Instant;

use rustix::fs::inotify::{self, ReadFlags};

use super::Watcher;
use super::recheck::Seen;

/// Events read and not understood yet; four times what the kernel keeps.
pub(super) const QUEUE: usize = 65_536;
/// The two halves of a rename come one behind the other, or nearly so.
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
    /// Up to which event each directory's names count; in order.
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
    /// Reads what the kernel has now.
    pub(super) fn fetch(&mut self) {
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

    pub(super) fn next(&mut self) -> Option<Raw> {
        let raw = self.queue.pop_front()?;
        self.moving -= usize::from(raw.moves_directory());
        self.reported.pass(raw.number);
        Some(raw)
    }

    /// Takes the second half of a rename out of the queue.
    pub(super) fn other_half(&mut self, cookie: u32) -> Option<Raw> {
        let found = |queue: &VecDeque<Raw>| {
            queue
                .iter()
                .take(APART)
                .position(|raw| raw.cookie == cookie && raw.what.contains(ReadFlags::MOVED_TO))
        };
        let index = found(&self.queue).or_else(|| {
            if self.queue.len() < APART {
                // The kernel queues both at once, but a read may have come between.
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
