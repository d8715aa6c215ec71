//! A file system in a file, mounted through a loop device that is removed with the mount.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::{Error, Step};

const LOOP_CTL_GET_FREE: u64 = 0x4c82;
const LOOP_CONFIGURE: u64 = 0x4c0a;
/// The device is removed when it is neither open nor mounted (`LO_FLAGS_AUTOCLEAR`).
const AUTOCLEAR: u32 = 4;
/// Direct I/O to the file, so that data is not cached twice.
const DIRECT: u32 = 16;
/// Maximum attempts: another process may take the free device first.
const MOST_TRIES: u32 = 100;

/// `loop_config` of the kernel, with its `loop_info64`.
#[repr(C)]
struct LoopConfig {
    descriptor: u32,
    block_size: u32,
    device: u64,
    inode: u64,
    real_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    file_name: [u8; 64],
    encryption_name: [u8; 64],
    key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// Whether a directory is a mount point.
pub fn is_mounted(at: &Path) -> bool {
    let device = |path: &Path| std::fs::symlink_metadata(path).map(|found| found.dev());
    match (device(at), at.parent().map(device)) {
        (Ok(own), Some(Ok(above))) => own != above,
        _ => false,
    }
}

/// Mounts the btrfs in a file at a directory, with `noexec`, `nodev` and `nosuid`: overlays on top of it have their own
/// flags.
pub fn mount(image: &Path, at: &Path, options: &str) -> Result<(), Error> {
    let file = OpenOptions::new().read(true).write(true).open(image);
    let file = file.step(|| format!("open {}", image.display()))?;
    let (device, path) = attach(&file).step(|| format!("attach {}", image.display()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    let options = std::ffi::CString::new(options)
        .map_err(io::Error::from)
        .step(|| "read mount options".into())?;
    rustix::mount::mount(path.as_str(), at, "btrfs", flags, options.as_c_str())
        .step(|| format!("mount {} at {}", image.display(), at.display()))?;
    // From now on the mount holds the device.
    drop(device);
    Ok(())
}

/// Unmounts a directory, lazily if it is busy; no mount is not an error. Processes that use the file
/// system keep it until they end.
pub fn unmount(at: &Path) -> Result<(), Error> {
    if !is_mounted(at) {
        return Ok(());
    }
    let step = || format!("unmount {}", at.display());
    match rustix::mount::unmount(at, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => {
            rustix::mount::unmount(at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH).step(step)
        }
        done => done.step(step),
    }
}

/// A loop device on a file, and its path. It exists as long as the descriptor is open.
fn attach(file: &File) -> io::Result<(File, String)> {
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    for _ in 0..MOST_TRIES {
        // SAFETY: the request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/loop{number}");
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        // SAFETY: all zeros are a valid `loop_config`.
        let mut config: LoopConfig = unsafe { std::mem::zeroed() };
        config.descriptor = file.as_raw_fd() as u32;
        config.block_size = 4096;
        config.flags = AUTOCLEAR | DIRECT;
        // SAFETY: the request takes a `loop_config`, which lives across the call.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw mut config) };
        if done == 0 {
            return Ok((device, path));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}
