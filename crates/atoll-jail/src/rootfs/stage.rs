//! A private mount namespace in which layers are attached while an overlay is created.
//!
//! Before Linux 6.15 an overlay accepts only layers that are attached in the mount namespace of the calling thread. In
//! the host's namespace all processes would see them, and a killed process would leave them there. Therefore one thread
//! of this process has a private namespace, with a root like that of the keeper and no mounts of the host. It attaches
//! the layers, creates the overlay, and detaches the layers. The namespace ends with the process. The overlay holds
//! references to its layers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount};

use crate::keeper::{NEW_ROOT, build_root};
use crate::{Error, Step};

type Work = Box<dyn FnOnce() + Send>;

/// Queue of the thread, after its start. The thread serves all instances of the process.
static STAGE: Mutex<Option<Sender<Work>>> = Mutex::new(None);

/// Attaches detached mounts, calls `work` in the same namespace, and detaches them.
pub(super) fn attached<T: Send + 'static>(
    mounts: Vec<OwnedFd>,
    work: impl FnOnce(&[OwnedFd]) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = channel();
    let work = Box::new(move || {
        let done = attach(&mounts, work);
        // Detached before the response, so that the result does not refer to this namespace.
        drop(mounts);
        let _ = answer.send(done);
    });
    enqueue(work)?;
    answered
        .recv()
        .unwrap_or_else(|_| Err(ended("make an overlay")))
}

fn attach<T>(
    mounts: &[OwnedFd],
    work: impl FnOnce(&[OwnedFd]) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut attached = 0;
    // All at the same directory: they are used by descriptor, not by path.
    let done = mounts
        .iter()
        .try_for_each(|mount| {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(mount.as_fd(), c"", CWD, NEW_ROOT, flags)
                .step(|| "attach a layer".into())?;
            attached += 1;
            Ok(())
        })
        .and_then(|()| work(mounts));
    for _ in 0..attached {
        rustix::mount::unmount(NEW_ROOT, UnmountFlags::DETACH).step(|| "detach a layer".into())?;
    }
    done
}

fn enqueue(mut work: Work) -> Result<(), Error> {
    let mut stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = stage.as_ref() {
        match queue.send(work) {
            Ok(()) => return Ok(()),
            // The thread ended because earlier work panicked.
            Err(returned) => work = returned.0,
        }
    }
    let queue = stage.insert(start()?);
    queue.send(work).map_err(|_| ended("begin"))
}

/// Starts the thread; returns its queue when the namespace exists.
fn start() -> Result<Sender<Work>, Error> {
    let (queue, waiting): (_, Receiver<Work>) = channel();
    let (answer, answered) = channel();
    let thread = std::thread::Builder::new().name("atoll-stage".into());
    thread
        .spawn(move || {
            let built = build_root();
            let ready = built.is_ok();
            if answer.send(built).is_ok() && ready {
                for work in waiting {
                    work();
                }
            }
        })
        .step(|| "start the thread that makes overlays".into())?;
    let built = answered.recv();
    built
        .unwrap_or_else(|_| Err(ended("begin")))
        .map(|()| queue)
}

fn ended(what: &str) -> Error {
    let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    Error::step(
        format!("{what}: the thread that makes overlays ended"),
        broken,
    )
}
