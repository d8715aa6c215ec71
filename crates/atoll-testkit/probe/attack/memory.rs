//! C02: allocates and touches every kind of memory until the requested amount is reached or the OOM killer acts.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::sys::{Errno, call, fd, owned, refer_mut, slice, slice_mut, text};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::inside(
    "c02-memory",
    "anon|memfd|shm|pipes|sockets BYTES, or pagecache|tmpfs|dentries BYTES PATH; HOLD=SECONDS in the environment keeps it",
    take,
)];

const STEP: u64 = 1 << 20;
const EVERY: u64 = 16 << 20;

/// Counts the allocated memory and prints it periodically, so that a test sees the amount before the kill.
struct Taken {
    kind: String,
    bytes: u64,
    reported: u64,
}

impl Taken {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes - self.reported >= EVERY {
            self.reported = self.bytes;
            out::ok("taken", &self.bytes.to_string());
        }
    }
}

fn take(args: &Args) -> Outcome {
    let kind = args.text(0, "KIND")?.to_owned();
    let most: u64 = args.number(1, "BYTES")?;
    let mut taken = Taken {
        kind: kind.clone(),
        bytes: 0,
        reported: 0,
    };
    let mut kept: Vec<OwnedFd> = Vec::new();
    let result = match kind.as_str() {
        "anon" => mapped(&mut taken, most, u64::MAX),
        "memfd" => call(nr::MEMFD_CREATE, &[text(c"probe"), 1]).and_then(|file| {
            kept.push(owned(file));
            written(&mut taken, most, file)
        }),
        "shm" => segments(&mut taken, most),
        "pagecache" | "tmpfs" => {
            let path = args.path(2, "PATH")?;
            sys::open(path, 0o1102).and_then(|file| {
                let answer = written(&mut taken, most, fd(&file));
                kept.push(file);
                answer
            })
        }
        "dentries" => names(&mut taken, most, args.path(2, "PATH")?),
        "pipes" => buffers(&mut taken, most, pipe_pair),
        "sockets" => buffers(&mut taken, most, socket_pair),
        other => return Err(format!("no kind {other}")),
    };
    match result {
        Ok(()) => out::ok(&taken.kind, &format!("bytes={}", taken.bytes)),
        Err(errno) => out::refused(&taken.kind, errno, &format!("bytes={}", taken.bytes)),
    }
    if let Some(seconds) = std::env::var("HOLD")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        std::thread::sleep(Duration::from_secs(seconds));
    }
    Ok(0)
}

fn mapped(taken: &mut Taken, most: u64, file: u64) -> Result<(), Errno> {
    const MAP_PRIVATE_ANONYMOUS: u64 = 0x22;
    while taken.bytes < most {
        let at = call(nr::MMAP, &[0, STEP, 3, MAP_PRIVATE_ANONYMOUS, file, 0])?;
        touch(at);
        taken.add(STEP);
    }
    Ok(())
}

/// Writes to each page of a fresh mapping of `STEP` bytes.
fn touch(address: u64) {
    for page in (0..STEP).step_by(4096) {
        let byte: *mut u8 = std::ptr::with_exposed_provenance_mut((address + page) as usize);
        // SAFETY: the mapping was just made, is writable, STEP long and not shared.
        unsafe { byte.write_volatile(page as u8 | 1) };
    }
}

fn written(taken: &mut Taken, most: u64, file: u64) -> Result<(), Errno> {
    let piece = vec![b'x'; STEP as usize];
    while taken.bytes < most {
        let count = call(
            nr::WRITE,
            &[file, slice(&piece), STEP.min(most - taken.bytes)],
        )?;
        taken.add(count);
    }
    Ok(())
}

fn segments(taken: &mut Taken, most: u64) -> Result<(), Errno> {
    const IPC_CREAT: u64 = 0o1000;
    while taken.bytes < most {
        let segment = call(nr::SHMGET, &[0, STEP, IPC_CREAT | 0o600])?;
        let at = call(nr::SHMAT, &[segment, 0, 0]);
        // Marked for removal at once: gone when this process is.
        let _ = call(nr::SHMCTL, &[segment, 0, 0]);
        touch(at?);
        taken.add(STEP);
    }
    Ok(())
}

/// Looks up names that are not there: each leaves an entry in the kernel's cache.
fn names(taken: &mut Taken, most: u64, directory: &Path) -> Result<(), Errno> {
    const ENTRY: u64 = 192;
    let mut number = 0_u64;
    fs::create_dir_all(directory).map_err(|problem| Errno::of(&problem))?;
    while taken.bytes < most {
        let path = sys::c_path(directory.join(format!("no-such-name-{number:020}")));
        let mut about = [0_u64; 18];
        let _ = call(nr::LSTAT, &[text(&path), slice_mut(&mut about)]);
        number += 1;
        taken.add(ENTRY);
    }
    Ok(())
}

fn pipe_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    const F_SETPIPE_SZ: u64 = 1031;
    let (from, to) = sys::pipe()?;
    let _ = call(nr::FCNTL, &[fd(&to), F_SETPIPE_SZ, STEP]);
    Ok((from, to))
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [0_i32; 2];
    call(nr::SOCKETPAIR, &[1, 1, 0, slice_mut(&mut ends)])?;
    let mut size = STEP as i32;
    let _ = call(
        nr::SETSOCKOPT,
        &[ends[1] as u64, 1, 7, refer_mut(&mut size), 4],
    );
    Ok((owned(ends[0] as u64), owned(ends[1] as u64)))
}

/// Fills pipe and socket buffers without a reader. When this process has no descriptors left, a child continues
/// while it waits.
fn buffers(
    taken: &mut Taken,
    most: u64,
    make: fn() -> Result<(OwnedFd, OwnedFd), Errno>,
) -> Result<(), Errno> {
    const F_SETFL: u64 = 4;
    const O_NONBLOCK: u64 = 0o4_000;
    let piece = vec![b'x'; 64 << 10];
    let mut kept = Vec::new();
    while taken.bytes < most {
        let (from, to) = match make() {
            Ok(pair) => pair,
            Err(Errno::EMFILE) => return go_on_in_child(taken, most, make),
            Err(errno) => return Err(errno),
        };
        call(nr::FCNTL, &[fd(&to), F_SETFL, O_NONBLOCK])?;
        loop {
            match call(nr::WRITE, &[fd(&to), slice(&piece), piece.len() as u64]) {
                Ok(count) => taken.add(count),
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        kept.push((from, to));
    }
    // Kept until the process ends, as in an attack.
    std::mem::forget(kept);
    Ok(())
}

fn go_on_in_child(
    taken: &mut Taken,
    most: u64,
    make: fn() -> Result<(OwnedFd, OwnedFd), Errno>,
) -> Result<(), Errno> {
    // A child inherits the descriptors and must close its copies; the parent's keep the buffers alive.
    let Some(child) = sys::fork()? else {
        let _ = call(nr::CLOSE_RANGE, &[3, 0xffff_ffff, 0]);
        let code = match buffers(taken, most, make) {
            Ok(()) => 0,
            Err(errno) => errno.0,
        };
        out::ok("taken", &taken.bytes.to_string());
        sys::exit(code);
    };
    match sys::wait(child, 0)? {
        Some((_, sys::Ended::Code(0))) => {
            taken.bytes = most;
            Ok(())
        }
        Some((_, sys::Ended::Code(errno))) => Err(Errno(errno)),
        _ => Err(Errno(12)),
    }
}
