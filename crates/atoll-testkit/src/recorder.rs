//! A disk that records every write, and can show the state after a power cut at any point.
//!
//! It is one file of a FUSE file system, which backs a loop device. Data written before the last flush survives a
//! cut; of later writes any subset may survive. A file system on it can be mounted in the state after a cut; the
//! next cut discards its changes.

mod fuse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use crate::cage::sound;
use crate::scratch::detach_below;
use crate::{mounts, wait_for};

/// Unit that a disk writes atomically, in bytes.
const BLOCK: usize = 4096;

/// The disk, with a file system on it that is mounted until this is dropped.
#[derive(Debug)]
pub struct Recorder {
    disk: Arc<Mutex<Disk>>,
    /// Mount point of the FUSE file system.
    below: PathBuf,
    point: PathBuf,
    server: Option<JoinHandle<()>>,
    watchdog: Child,
}

#[derive(Debug)]
struct Disk {
    /// Contents at the start of the recording; during a replay, the durable contents at the current position.
    contents: Vec<u8>,
    /// Contents at the start of the recording, until it ends.
    initial: Vec<u8>,
    log: Vec<Event>,
    /// During a replay: blocks that differ from the contents. `None` while it records.
    changed: Option<HashMap<usize, Vec<u8>>>,
    /// Number of log entries that are applied to the contents.
    replayed: usize,
}

#[derive(Debug)]
enum Event {
    Write(usize, Vec<u8>),
    Flush,
}

impl Disk {
    fn read(&self, at: usize, size: usize) -> Vec<u8> {
        let end = (at + size).min(self.contents.len());
        let mut bytes = self.contents[at.min(end)..end].to_vec();
        let Some(changed) = &self.changed else {
            return bytes;
        };
        for (number, from, to) in blocks(at, bytes.len()) {
            if let Some(block) = changed.get(&number) {
                let begin = number * BLOCK + from - at;
                bytes[begin..begin + to - from].copy_from_slice(&block[from..to]);
            }
        }
        bytes
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let Some(changed) = &mut self.changed else {
            self.contents[at..at + bytes.len()].copy_from_slice(bytes);
            self.log.push(Event::Write(at, bytes.to_vec()));
            return;
        };
        for (number, from, to) in blocks(at, bytes.len()) {
            let begin = number * BLOCK;
            let old = || self.contents[begin..begin + BLOCK].to_vec();
            let part = begin + from - at;
            let block = changed.entry(number).or_insert_with(old);
            block[from..to].copy_from_slice(&bytes[part..part + to - from]);
        }
    }

    fn flush(&mut self) {
        if self.changed.is_none() {
            self.log.push(Event::Flush);
        }
    }

    /// Sets the contents to a possible state after a cut behind `events` events. `events` must not decrease.
    fn cut(&mut self, events: usize, mut survives: impl FnMut() -> bool) {
        let flushed = self.log[..events]
            .iter()
            .rposition(|event| matches!(event, Event::Flush));
        let flushed = flushed.unwrap_or(0).max(self.replayed);
        for event in &self.log[self.replayed..flushed] {
            if let Event::Write(at, bytes) = event {
                self.contents[*at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        self.replayed = flushed;
        self.changed = Some(HashMap::new());
        let unflushed: Vec<(usize, Vec<u8>)> = self.log[flushed..events]
            .iter()
            .filter_map(|event| match event {
                Event::Write(at, bytes) => Some((*at, bytes.clone())),
                Event::Flush => None,
            })
            .collect();
        for (at, bytes) in unflushed {
            for (number, from, to) in blocks(at, bytes.len()) {
                if survives() {
                    let begin = number * BLOCK + from;
                    self.write(begin, &bytes[begin - at..begin - at + to - from]);
                }
            }
        }
    }
}

/// The blocks of a part of the disk: the number of each, and where the part begins and ends in it.
fn blocks(at: usize, size: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = at + size;
    (at / BLOCK..end.div_ceil(BLOCK)).map(move |number| {
        let begin = number * BLOCK;
        let (from, to) = (at.max(begin) - begin, end.min(begin + BLOCK) - begin);
        (number, from, to)
    })
}

impl Recorder {
    /// Makes one with an empty ext4 of this size, mounted at `disk` of `scratch`, and begins to record.
    pub fn new(scratch: &Path, size: usize) -> Self {
        let (below, point) = (scratch.join("below"), scratch.join("disk"));
        fs::create_dir(&below).expect("the place of the disk can be made");
        fs::create_dir(&point).expect("the mount point can be made");
        let image = scratch.join("empty.image");
        let made = File::create_new(&image).and_then(|file| file.set_len(size as u64));
        made.expect("a sparse file can be made");
        sound(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-m", "0"])
                .arg(&image),
        );
        let mut contents = Vec::with_capacity(size);
        let read = File::open(&image).and_then(|mut file| file.read_to_end(&mut contents));
        read.expect("the empty file system can be read");
        fs::remove_file(&image).expect("the image can be removed");
        let disk = Arc::new(Mutex::new(Disk {
            initial: contents.clone(),
            contents,
            log: Vec::new(),
            changed: None,
            replayed: 0,
        }));
        let server = fuse::serve(&below, Arc::clone(&disk));
        let watchdog = watchdog(&below);

        let recorder = Self {
            disk,
            below,
            point,
            server: Some(server),
            watchdog,
        };
        recorder.mount();
        recorder
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mount point of the recorded file system.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Number of recorded writes and flushes.
    pub fn position(&self) -> usize {
        self.disk().log.len()
    }

    /// Ends the recording, and goes back to its beginning.
    pub fn finish(&self) {
        self.unmount();
        let mut disk = self.disk();
        disk.contents = std::mem::take(&mut disk.initial);
        disk.changed = Some(HashMap::new());
    }

    /// Mounts a possible state after a power cut at `position`, which must not decrease between calls. `survives`
    /// decides for each block written since the last flush whether it reached the disk. The next cut discards
    /// changes made meanwhile.
    pub fn cut(&self, position: usize, survives: impl FnMut() -> bool) {
        self.disk().cut(position, survives);
        self.mount();
    }

    fn mount(&self) {
        sound(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(self.below.join(fuse::NAME))
                .arg(&self.point),
        );
    }

    /// Unmounts it. Programs may be on their way out. Its loop device is waited for: a mount that found it would see what
    /// the kernel remembers of the disk.
    pub fn unmount(&self) {
        wait_for("the disk to be unmounted", Duration::from_mins(1), || {
            !is_mounted(&self.point) || unmount(&self.point, UnmountFlags::NOFOLLOW).is_ok()
        });
        let image = self.below.join(fuse::NAME);
        wait_for("its loop device to be gone", Duration::from_mins(1), || {
            !has_loop_device(&image)
        });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Threads that wait for the disk could not end otherwise.
            let _ = unmount(&self.below, UnmountFlags::FORCE);
        }
        detach_below(&self.point);
        detach_below(&self.below);
        if !std::thread::panicking()
            && let Some(server) = self.server.take()
        {
            let _ = server.join();
        }
        let _ = self.watchdog.kill();
        let _ = self.watchdog.wait();
    }
}

/// Aborts the FUSE connection if this process is killed. A thread that waits for the disk cannot end before, keeps the
/// connection open with it, and every `sync` of the machine would wait for it. Such a process stays a zombie, so its state
/// is polled.
fn watchdog(below: &Path) -> Child {
    let script = "while grep -qs '^State:[[:space:]]*[^ZX]' /proc/$1/status; do sleep 0.2; done; umount -f \"$2\"";
    let own = std::process::id().to_string();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", &own]).arg(below);
    // The test runner kills the process group of a test.
    let command = command.process_group(0).stdin(Stdio::null());
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("sh starts")
}

fn is_mounted(point: &Path) -> bool {
    mounts().iter().any(|mount| mount.point == point)
}

fn has_loop_device(image: &Path) -> bool {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok())
        .any(|backing| Path::new(backing.trim_end()) == image)
}
