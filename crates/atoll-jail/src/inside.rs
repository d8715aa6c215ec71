//! Processes inside a sandbox: PID 1, the programs that it starts, and its file helpers.
//!
//! PID 1 and helpers are this binary, continued after a clone, so that they need no file of the template. PID 1 is an event
//! loop. It does no file operations except user lookups, and never execs, so that root of the sandbox can neither trace it
//! nor read its memory.

mod exec;
mod files;
mod setup;
mod users;
mod views;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};

use crate::sys;
use crate::wire::{Boot, Channel, FromInit, Packet, Size, ToInit};
use exec::Launcher;
use setup::Made;
use views::Views;

type Server = Channel<FromInit, ToInit>;

/// Becomes PID 1 of a sandbox. Returns when the sandbox has ended.
pub(crate) fn init(server: Server) {
    let Made {
        boot,
        oom_score,
        cookie,
        views,
    } = match setup::become_sandbox(&server) {
        Ok(made) => made,
        Err(fault) => {
            let _ = server.send(&FromInit::Fault(fault), &[]);
            return;
        }
    };
    let launcher = Launcher::new(oom_score, cookie);
    let (Ok(signals), Ok(launcher)) = (sys::child_signals(), launcher) else {
        return;
    };
    if server.send(&FromInit::Ready, &[]).is_ok() {
        Init {
            server,
            boot,
            signals,
            launcher,
            views,
            children: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
        .run();
    }
}

struct Init {
    server: Server,
    boot: Boot,
    signals: OwnedFd,
    launcher: Launcher,
    views: Views,
    /// Children of requests, by pid. Other children (orphans of the sandbox) are only reaped.
    children: BTreeMap<i32, Child>,
    /// Exit statuses of execs, until the server has recorded them: it may be killed before.
    ended: BTreeMap<u32, i32>,
}

enum Child {
    Exec { request: u32 },
    Helper { request: u32 },
}

impl Init {
    fn run(mut self) {
        loop {
            let mut ready = [
                PollFd::new(&self.server, PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            if let Err(error) = rustix::event::poll(&mut ready, None)
                && error != rustix::io::Errno::INTR
            {
                return;
            }
            let happened = ready.map(|fd| !fd.revents().is_empty());
            if happened[1] {
                let endings = self.reap();
                self.say_all(&endings);
            }
            if happened[0] {
                match self.server.receive() {
                    Ok(Some(Packet {
                        message,
                        descriptors,
                    })) => self.obey(message, descriptors),
                    // The server has closed the connection: the sandbox ends.
                    Ok(None) | Err(_) => return,
                }
            }
        }
    }

    fn say(&self, message: &FromInit) {
        self.say_all(std::slice::from_ref(message));
    }

    fn say_all(&self, messages: &[FromInit]) {
        // If the connection is closed, the next receive fails.
        let _ = self.server.send_all(messages);
    }

    fn obey(&mut self, message: ToInit, descriptors: Vec<OwnedFd>) {
        match message {
            ToInit::Exec {
                request,
                exec,
                forget,
            } => {
                for request in forget {
                    self.ended.remove(&request);
                }
                let started = self.launcher.start(&self.boot, &exec, &descriptors);
                // Closed before the response: the server polls the output from then on, and each closed end would
                // wake it.
                drop(descriptors);
                match started {
                    Ok(pid) => self.tell_of(request, pid),
                    Err((part, errno)) => self.say(&FromInit::Refused {
                        request,
                        part,
                        errno,
                    }),
                }
            }
            ToInit::File { request, call } => {
                if let Some(pid) = files::start(&self.boot, &call, descriptors) {
                    self.children.insert(pid, Child::Helper { request });
                }
            }
            ToInit::Signal { request, signal } => {
                for (pid, child) in &self.children {
                    if matches!(child, Child::Exec { request: r } if *r == request) {
                        // A child that was stopped before `setsid` does not have its own process group yet.
                        if sys::kill(-pid, signal).is_err() {
                            let _ = sys::kill(*pid, signal);
                        }
                    }
                    if matches!(child, Child::Helper { request: r } if *r == request) {
                        let _ = sys::kill(*pid, signal);
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
            ToInit::Report { number } => {
                for (&pid, child) in &self.children {
                    if let Child::Exec { request } = *child {
                        self.say(&FromInit::Started { request, pid });
                    }
                }
                for (&request, &status) in &self.ended {
                    self.say(&FromInit::Ended { request, status });
                }
                self.say(&FromInit::Reported { number });
            }
            ToInit::Resize { request, size } => {
                let errno = match self.resize(&size) {
                    Ok(()) => 0,
                    Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
                };
                self.say(&FromInit::Resized { request, errno });
            }
            // The setup happens once.
            ToInit::Boot(_) | ToInit::Go => {}
        }
    }

    /// Reports that a program was started. A short program may have ended already: both messages are sent in one system
    /// call, so that the server wakes once.
    fn tell_of(&mut self, request: u32, pid: i32) {
        self.children.insert(pid, Child::Exec { request });
        let mut news = vec![FromInit::Started { request, pid }];
        if sys::has_ended(pid) {
            news.extend(self.reap());
        }
        self.say_all(&news);
        if self.children.contains_key(&pid) {
            self.launcher.give_score(pid);
        }
    }

    /// Updates the views; new programs inherit PID 1's processors.
    fn resize(&self, size: &Size) -> io::Result<()> {
        self.views.rewrite(&size.views)?;
        sys::set_processors(0, &size.processors)
    }

    /// Reaps ended children; returns the messages about them.
    fn reap(&mut self) -> Vec<FromInit> {
        let mut discard = [0; 1024];
        while rustix::io::read(&self.signals, &mut discard).is_ok_and(|read| read > 0) {}
        let mut endings = Vec::new();
        while let Some((pid, status)) = sys::reap() {
            if let Some(Child::Exec { request }) = self.children.remove(&pid) {
                self.ended.insert(request, status);
                endings.push(FromInit::Ended { request, status });
            }
        }
        endings
    }
}
