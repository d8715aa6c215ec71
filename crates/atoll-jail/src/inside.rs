//! What runs inside a sandbox: PID 1, the programs it starts, and its file helpers.
//!
//! All of it is this same binary going on after a clone: nothing of ours needs a file of the
//! template. PID 1 is an event loop that never does file work itself and never execs, so that root
//! of the sandbox can neither trace it nor read it.

mod exec;
mod files;
mod setup;
mod users;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags};

use crate::sys;
use crate::wire::{Boot, Channel, Exec, FromInit, Packet, Part, ToInit};

type Server = Channel<FromInit, ToInit>;

/// Becomes PID 1 of a sandbox. Returns when the sandbox is over.
pub(crate) fn init(server: Server) {
    let (boot, oom_score) = match setup::become_sandbox(&server) {
        Ok(made) => made,
        Err(fault) => {
            let _ = server.send(&FromInit::Fault(fault), &[]);
            return;
        }
    };
    let Ok(signals) = sys::child_signals() else {
        return;
    };
    if server.send(&FromInit::Ready, &[]).is_ok() {
        Init {
            server,
            boot,
            signals,
            oom_score,
            known: None,
            children: BTreeMap::new(),
        }
        .run();
    }
}

struct Init {
    server: Server,
    boot: Boot,
    signals: OwnedFd,
    /// PID 1's own.
    oom_score: File,
    /// The user of the last command, so that the next one need not be looked up.
    known: Option<users::Known>,
    /// Children that a request is about, by pid. Others (orphans of the sandbox) are only reaped.
    children: BTreeMap<i32, Child>,
}

enum Child {
    /// Told apart from a running one by its pipe: closed without a word means that it runs.
    Starting {
        request: u32,
        pipe: PipeReader,
        /// What it said so far.
        heard: Vec<u8>,
    },
    Running {
        request: u32,
    },
    Helper {
        request: u32,
    },
}

impl Init {
    fn run(mut self) {
        loop {
            let starting: Vec<i32> = self
                .children
                .iter()
                .filter(|(_, child)| matches!(child, Child::Starting { .. }))
                .map(|(pid, _)| *pid)
                .collect();
            let mut ready = vec![
                PollFd::new(&self.server, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            for pid in &starting {
                if let Some(Child::Starting { pipe, .. }) = self.children.get(pid) {
                    ready.push(PollFd::new(pipe, PollFlags::IN));
                }
            }
            if let Err(error) = rustix::event::poll(&mut ready, None)
                && error != rustix::io::Errno::INTR
            {
                return;
            }
            let happened: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (pid, _) in starting
                .iter()
                .zip(&happened[2..])
                .filter(|(_, happened)| **happened)
            {
                self.started(*pid);
            }
            if happened[1] {
                self.reap();
            }
            if happened[0] {
                match self.server.receive() {
                    Ok(Some(Packet {
                        message,
                        descriptors,
                    })) => self.obey(message, descriptors),
                    // The server is gone and with it every reason to be.
                    Ok(None) | Err(_) => return,
                }
            }
        }
    }

    fn say(&self, message: &FromInit) {
        // If nobody listens any more, the next receive says so.
        let _ = self.server.send(message, &[]);
    }

    fn obey(&mut self, message: ToInit, descriptors: Vec<OwnedFd>) {
        match message {
            ToInit::Exec { request, exec } => match self.start(&exec, &descriptors) {
                Ok((pid, pipe)) => {
                    let heard = Vec::new();
                    let child = Child::Starting {
                        request,
                        pipe,
                        heard,
                    };
                    self.children.insert(pid, child);
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    self.say(&FromInit::Refused {
                        request,
                        part: Part::Setup,
                        errno,
                    });
                }
            },
            ToInit::File { request, call } => {
                // If it cannot be started its sockets close, and the caller sees that.
                if let Ok(pid) = files::start(&self.boot, &call, descriptors) {
                    self.children.insert(pid, Child::Helper { request });
                }
            }
            ToInit::Signal { request, signal } => {
                for (pid, child) in &self.children {
                    if matches!(child, Child::Starting { request: r, .. } | Child::Running { request: r } if *r == request)
                    {
                        let _ = sys::kill(-pid, signal);
                    }
                }
            }
            ToInit::Cancel { request } => {
                for (pid, child) in &self.children {
                    if matches!(child, Child::Helper { request: r } if *r == request) {
                        let _ = sys::kill(*pid, libc::SIGKILL);
                    }
                }
            }
            // Once is enough.
            ToInit::Boot(_) | ToInit::Go => {}
        }
    }

    /// Starts a program, which dies before PID 1 when memory runs out.
    fn start(&self, exec: &Exec, descriptors: &[OwnedFd]) -> io::Result<(i32, PipeReader)> {
        // A child inherits the score, and after a clone it could not open its own.
        let score = |value: &[u8]| self.oom_score.write_at(value, 0);
        score(b"300")?;
        let started = exec::start(&self.boot, self.known.as_ref(), exec, descriptors);
        score(b"0")?;
        started
    }

    /// Hears what a starting child says. Once its pipe is closed it has become its program, or has
    /// said why not.
    fn started(&mut self, pid: i32) {
        let Some(child) = self.children.get_mut(&pid) else {
            return;
        };
        let Child::Starting {
            request,
            pipe,
            heard,
        } = child
        else {
            return;
        };
        match pipe.read_to_end(heard) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => {}
        }
        let (request, said) = (*request, exec::understand(heard));
        let message = if let Some((part, errno)) = said.failure {
            self.children.remove(&pid);
            FromInit::Refused {
                request,
                part,
                errno,
            }
        } else {
            *child = Child::Running { request };
            FromInit::Started { request, pid }
        };
        if said.learnt.is_some() {
            self.known = said.learnt;
        }
        self.say(&message);
    }

    fn reap(&mut self) {
        let mut discard = [0; 1024];
        while rustix::io::read(&self.signals, &mut discard).is_ok_and(|read| read > 0) {}
        while let Some((pid, status)) = sys::reap() {
            // It may have ended before we looked at its pipe: first things first.
            self.started(pid);
            if let Some(Child::Running { request }) = self.children.remove(&pid) {
                self.say(&FromInit::Ended { request, status });
            }
        }
    }
}
