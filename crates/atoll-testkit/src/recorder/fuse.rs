//! The subset of the FUSE protocol (7.31) that a loop device on one file needs. The kernel's header `linux/fuse.h`
//! has all of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::Disk;

/// The name of the only file.
pub(super) const NAME: &str = "image";

const FILE: u64 = 2;
const LARGEST: usize = 1 << 20;
const HEADER: usize = 40;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Writes bypass the page cache and arrive one by one.
const DIRECT_IO: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const MAX_PAGES: u32 = 1 << 22;

/// Mounts the disk as a file below a directory, and serves it until that is unmounted.
pub(super) fn serve(below: &Path, disk: Arc<Mutex<Disk>>) -> JoinHandle<()> {
    let mut options = File::options();
    let device = options.read(true).write(true).open("/dev/fuse");
    let device = device.expect("the kernel has FUSE");
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,max_read={LARGEST}\0",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::from_vec_with_nul(options.into()).expect("one zero");
    mount(
        "atoll-test",
        below,
        "fuse",
        MountFlags::empty(),
        options.as_c_str(),
    )
    .expect("the disk can be mounted");
    std::thread::spawn(move || while answer(&device, &disk) {})
}

/// Answers one request; false when there will be none any more.
fn answer(mut device: &File, disk: &Mutex<Disk>) -> bool {
    let mut request = vec![0; LARGEST + (64 << 10)];
    let size = match device.read(&mut request) {
        Ok(size) => size,
        // One that was taken back meanwhile.
        Err(error) if Errno::from_io_error(&error).is_some_and(passes) => return true,
        Err(_) => return false,
    };
    request.truncate(size);
    let (code, unique, node) = (
        u32_at(&request, 4),
        u64_at(&request, 8),
        u64_at(&request, 16),
    );
    if matches!(code, FORGET | BATCH_FORGET | INTERRUPT) {
        return true;
    }
    let (errno, body) = match reply(code, node, &request[HEADER..], disk) {
        Ok(body) => (0, body),
        Err(errno) => (-errno, Vec::new()),
    };
    let mut answer = Vec::with_capacity(16 + body.len());
    answer.extend((16 + body.len() as u32).to_le_bytes());
    answer.extend(errno.to_le_bytes());
    answer.extend(unique.to_le_bytes());
    answer.extend(body);
    // The process that sent the request may have been killed.
    let _ = device.write_all(&answer);
    true
}

fn passes(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::INTR | Errno::AGAIN)
}

fn reply(code: u32, node: u64, body: &[u8], disk: &Mutex<Disk>) -> Result<Vec<u8>, i32> {
    let mut disk = disk.lock().unwrap_or_else(PoisonError::into_inner);
    let size = disk.contents.len() as u64;
    match code {
        INIT => Ok(init()),
        LOOKUP if body == [NAME.as_bytes(), b"\0"].concat() => {
            let mut entry = Fields::default();
            entry.long(FILE).long(0).long(60).long(60).word(0).word(0);
            Ok(attributes(entry, FILE, size))
        }
        LOOKUP => Err(Errno::NOENT.raw_os_error()),
        GETATTR | SETATTR => {
            let mut answer = Fields::default();
            answer.long(60).word(0).word(0);
            Ok(attributes(answer, node, size))
        }
        OPEN | OPENDIR => {
            let mut opened = Fields::default();
            opened.long(0).word(DIRECT_IO).word(0);
            Ok(opened.0)
        }
        READ => Ok(disk.read(u64_at(body, 8) as usize, u32_at(body, 16) as usize)),
        WRITE => {
            let bytes = &body[40..];
            disk.write(u64_at(body, 8) as usize, bytes);
            let mut written = Fields::default();
            written.word(bytes.len() as u32).word(0);
            Ok(written.0)
        }
        FSYNC => {
            disk.flush();
            Ok(Vec::new())
        }
        FLUSH | RELEASE | RELEASEDIR => Ok(Vec::new()),
        _ => Err(Errno::NOSYS.raw_os_error()),
    }
}

fn init() -> Vec<u8> {
    let mut answer = Fields::default();
    answer.word(7).word(31).word(LARGEST as u32);
    answer.word(BIG_WRITES | MAX_PAGES);
    // `max_background` and `congestion_threshold`.
    answer.half(16).half(12);
    answer.word(LARGEST as u32).word(1);
    answer.half((LARGEST / 4096) as u16).half(0);
    answer.0.resize(64, 0);
    answer.0
}

/// Appends the attributes (`fuse_attr`) to the preceding fields.
fn attributes(mut before: Fields, node: u64, size: u64) -> Vec<u8> {
    let (mode, size) = if node == FILE {
        (0o100_600, size)
    } else {
        (0o040_700, 0)
    };
    before.long(node).long(size).long(size / 512);
    before.long(0).long(0).long(0).word(0).word(0).word(0);
    before
        .word(mode)
        .word(1)
        .word(0)
        .word(0)
        .word(0)
        .word(4096)
        .word(0);
    before.0
}

/// An answer, put together.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn half(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..at + 4].try_into();
    u32::from_le_bytes(field.expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..at + 8].try_into();
    u64::from_le_bytes(field.expect("eight bytes"))
}
