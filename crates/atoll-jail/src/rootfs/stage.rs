//! Where layers are attached while an overlay is made of them.
//!
//! Before Linux 6.15 an overlay takes only layers that are attached in the mount namespace of the thread that
//! makes it. The host's is no place for that: all processes would see them, and a killed process would
//! leave them there. So one thread of this process has a namespace of its own, with a root like the
//! keeper's, which holds nothing of the host; it attaches, makes, and detaches. It ends with the process, and
//! the namespace with it. The overlay keeps what it needs of its layers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount};

use crate::keeper::{NEW_ROOT, build_root};
use crate::{Error, Step};

type Work = Box<dyn FnOnce() + Send>;

/// The thread's queue, once there is a thread. It serves the process: what it keeps is no instance's.
static STAGE: Mutex<Option<Sender<Work>>> = Mutex::new(None);

/// Attaches detached mounts, does the work in the same namespace, and detaches them again.
pub(super) fn attached<T: Send + 'static>(
    mounts: Vec<OwnedFd>,
    work: impl FnOnce(&[OwnedFd]) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = channel();
    let work = Box::new(move || {
        let done = attach(&mounts, work);
        // Before the answer: what is answered holds nothing of the stage.
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
    // One upon the other: they are not looked up by path.
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
            // Work of another panicked and took the thread with it.
            Err(returned) => work = returned.0,
        }
    }
    let queue = stage.insert(start()?);
    queue.send(work).map_err(|_| ended("begin"))
}

/// Starts the thread; its queue, once it has its namespace.
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
