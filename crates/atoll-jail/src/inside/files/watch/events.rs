//! Interprets inotify events and reports changes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::inotify::ReadFlags;

use super::Watcher;
use super::queue::{QUEUE, Raw};
use super::recheck::Seen;
use crate::wire::WatchChange;

impl Watcher<'_> {
    pub(super) fn understand(&mut self, raw: &Raw) -> std::io::Result<()> {
        if raw.what.contains(ReadFlags::QUEUE_OVERFLOW)
            || self.queue.len().max(self.missed.len()) >= QUEUE
        {
            return self.start_anew();
        }
        let gone = ReadFlags::DELETE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT;
        if raw.watch == self.root && raw.what.intersects(gone | ReadFlags::MOVE_SELF) {
            self.ended = true;
            return self.say(WatchChange::End);
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
                return self.say(WatchChange::Chmod { path: Vec::new() });
            }
            return Ok(());
        }
        if self.recursive && raw.directory() {
            self.remember(Seen::Reported((raw.watch, raw.name.clone())));
        }
        if raw.what.contains(ReadFlags::MOVED_FROM) {
            if let Some(to) = self.other_half(raw.cookie) {
                return self.rename(raw, &to);
            }
            return self.vanish(raw, |path| WatchChange::Away { path });
        }
        if raw.what.contains(ReadFlags::DELETE) {
            return self.vanish(raw, |path| WatchChange::Remove { path });
        }
        if raw.what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            return self.appear(raw);
        }
        self.renamed = None;
        let Some(path) = self.tree.path(raw.watch, &raw.name) else {
            return self.say(WatchChange::Overflow);
        };
        self.say(if raw.what.contains(ReadFlags::MODIFY) {
            WatchChange::Write { path }
        } else {
            WatchChange::Chmod { path }
        })
    }

    fn rename(&mut self, from: &Raw, to: &Raw) -> std::io::Result<()> {
        let known = self.tree.child(from.watch, &from.name);
        if known.is_none() && to.directory() && self.recursive && !self.limited {
            // The directory was, or will be, found at its new path and reported as new.
            self.vanish(from, |path| WatchChange::Remove { path })?;
            return self.appear(to);
        }
        let paths = (
            self.tree.path(from.watch, &from.name),
            self.tree.path(to.watch, &to.name),
        );
        let (Some(old), Some(new)) = paths else {
            return self.say(WatchChange::Overflow);
        };
        let place = |raw: &Raw| (raw.watch, raw.name.clone());
        let last = self.renamed.replace((place(from), place(to)));
        if last == Some((place(to), place(from))) && self.is_there(&old) {
            // An exchange of two entries. Two renames would report that one of them was removed.
            return self.start_anew();
        }
        self.reported.take(from.watch, &from.name);
        self.reported.take(to.watch, &to.name);
        self.missed.remove(&place(from));
        if let Some(replaced) = self.tree.child(to.watch, &to.name)
            && known != Some(replaced)
        {
            self.drop_tree(replaced);
        }
        self.say(WatchChange::Rename { from: old, to: new })?;
        match known {
            Some(known) if !self.tree.put(known, to.watch, &to.name) => self.start_anew(),
            _ => Ok(()),
        }
    }

    fn is_there(&self, path: &[u8]) -> bool {
        fs::symlink_metadata(self.top.join(OsStr::from_bytes(path))).is_ok()
    }

    fn vanish(
        &mut self,
        raw: &Raw,
        how: impl FnOnce(Vec<u8>) -> WatchChange,
    ) -> std::io::Result<()> {
        self.reported.take(raw.watch, &raw.name);
        self.missed.remove(&(raw.watch, raw.name.clone()));
        let path = self.tree.path(raw.watch, &raw.name);
        if let Some(known) = self.tree.child(raw.watch, &raw.name) {
            self.drop_tree(known);
        }
        self.say(path.map_or(WatchChange::Overflow, how))
    }

    fn appear(&mut self, raw: &Raw) -> std::io::Result<()> {
        if self.reported.take(raw.watch, &raw.name) {
            return Ok(());
        }
        let directory = raw.directory();
        let path = self.tree.path(raw.watch, &raw.name);
        let create = |path| WatchChange::Create { path, directory };
        self.say(path.map_or(WatchChange::Overflow, create))?;
        if directory {
            self.enter(raw.watch, &raw.name, true)?;
        }
        Ok(())
    }
}
