//! Directory watches: the worker's end of a helper that reports file system changes.
//!
//! Nothing is read ahead: with a slow reader the helper's socket fills, then the kernel's inotify
//! queue, and the reader gets an overflow event. Only [`Watch::drain`] reads more than one event,
//! up to a limit.

use std::collections::VecDeque;
use std::sync::Arc;

use atoll_jail::wire::{FileOp, FromHelper, ToHelper, WatchChange};
use atoll_model::{Code, Error, RunAs, WatchEvent, WatchOptions};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::files::{HelperCall, check_path};
use crate::sandbox::Sandbox;

/// Maximum number of buffered events, four times the kernel's inotify queue.
const MAX_EVENTS: usize = 65_536;
/// Maximum bytes of paths in buffered events.
const MAX_PATH_BYTES: usize = 16 << 20;
/// Maximum number of watches per sandbox.
const MAX_WATCHES: usize = 64;
/// Above every host's `fs.inotify.max_user_watches`.
const MAX_DIRECTORIES: u32 = 1 << 20;

/// A watch on a directory, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    call: HelperCall,
    waiting: VecDeque<WatchEvent>,
    /// Bytes of paths in `waiting`.
    bytes: usize,
    token: u32,
    /// No more messages come from the helper.
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// Permits for the watches of one sandbox.
pub(crate) fn watch_permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_WATCHES))
}

pub(crate) async fn watch(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    path: &[u8],
    options: WatchOptions,
) -> Result<Watch, Error> {
    let work = FileOp::Watch {
        path: check_path(path)?,
        recursive: options.recursive,
        limit: options.directories.clamp(1, MAX_DIRECTORIES),
    };
    let permit = Arc::clone(&sandbox.watches).try_acquire_owned();
    let permit = permit.map_err(|_| {
        let message = format!("this sandbox has {MAX_WATCHES} watches already");
        Error::new(Code::QuotaExceeded, message).remedy("end some, or use one recursive watch")
    })?;
    let mut watch = Watch {
        call: HelperCall::start(sandbox, caller, work, None).await?,
        waiting: VecDeque::new(),
        bytes: 0,
        token: 0,
        ended: false,
        _permit: permit,
    };
    watch
        .wait_for_drained(0)
        .await
        .map_err(|error| match error.code {
            Code::DiskFull => Error::new(
                Code::QuotaExceeded,
                "the sandbox's user watches as many directories as the host allows",
            )
            .remedy(
                "end other watches, or raise fs.inotify.max_user_watches and max_user_instances",
            ),
            _ => error,
        })?;
    Ok(watch)
}

impl Watch {
    /// Waits for the next event; `None` after the end.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.bytes = self.bytes.saturating_sub(length(&event));
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            let message = self.call.receive().await?;
            self.handle_message(message);
        }
    }

    /// All events before this call that were not returned yet.
    pub async fn drain(&mut self) -> Result<Vec<WatchEvent>, Error> {
        if !self.ended {
            self.token = self.token.wrapping_add(1).max(1);
            // If it has ended just now, its last messages are still to be read.
            let request = ToHelper::Drain { token: self.token };
            let _ = self.call.send(&request).await;
            self.wait_for_drained(self.token).await?;
        }
        self.bytes = 0;
        Ok(std::mem::take(&mut self.waiting).into())
    }

    /// Receives until the helper has answered the drain with this token, or the watch has ended.
    async fn wait_for_drained(&mut self, token: u32) -> Result<(), Error> {
        let receive = async {
            while !self.ended {
                let message = self.call.next().await?;
                if self.handle_message(message) == Some(token) {
                    break;
                }
            }
            Ok(())
        };
        // A compromised helper could send changes for ever.
        match tokio::time::timeout(std::time::Duration::from_mins(2), receive).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(
                Code::Timeout,
                "the sandbox reported changes for two minutes without an end",
            )
            .remedy("watch a smaller directory")),
        }
    }

    /// Handles one message; returns the token of an answered drain.
    fn handle_message(&mut self, message: FromHelper) -> Option<u32> {
        match message {
            FromHelper::Changes(changes) => {
                for change in changes {
                    self.push_event(event(change));
                }
            }
            FromHelper::Drained { token } => return Some(token),
            FromHelper::Done { .. } => self.ended = true,
            _ => {}
        }
        None
    }

    fn push_event(&mut self, event: WatchEvent) {
        if self.ended {
            return;
        }
        self.ended = event == WatchEvent::End;
        self.bytes += length(&event);
        if self.waiting.len() >= MAX_EVENTS || self.bytes > MAX_PATH_BYTES {
            self.waiting.clear();
            self.waiting.push_back(WatchEvent::Overflow);
            self.bytes = length(&event);
        }
        self.waiting.push_back(event);
    }
}

fn length(event: &WatchEvent) -> usize {
    match event {
        WatchEvent::Create { path, .. }
        | WatchEvent::Write { path }
        | WatchEvent::Remove { path, .. }
        | WatchEvent::Chmod { path } => path.len(),
        WatchEvent::Rename { from, to } => from.len() + to.len(),
        WatchEvent::Overflow | WatchEvent::Limit | WatchEvent::End => 0,
    }
}

fn event(change: WatchChange) -> WatchEvent {
    match change {
        WatchChange::Create { path, directory } => WatchEvent::Create { path, directory },
        WatchChange::Write { path } => WatchEvent::Write { path },
        WatchChange::Remove { path } => WatchEvent::Remove {
            path,
            moved_away: false,
        },
        WatchChange::Away { path } => WatchEvent::Remove {
            path,
            moved_away: true,
        },
        WatchChange::Rename { from, to } => WatchEvent::Rename { from, to },
        WatchChange::Chmod { path } => WatchEvent::Chmod { path },
        WatchChange::Overflow => WatchEvent::Overflow,
        WatchChange::Limit => WatchEvent::Limit,
        WatchChange::End => WatchEvent::End,
    }
}
