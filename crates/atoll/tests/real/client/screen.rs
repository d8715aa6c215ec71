//! A pseudoterminal for a command, and the screen contents.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use atoll_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::harness::DEADLINE;

/// A command on a pseudoterminal, and its screen.
pub struct Screen {
    master: File,
    seen: Arc<Mutex<Vec<u8>>>,
    pub child: Child,
}

impl Screen {
    pub fn start(mut command: Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: 20,
            ws_col: 90,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let peer = || -> OwnedFd { ioctl_tiocgptpeer(&master, flags).unwrap() };
        let child = command
            .stdin(peer())
            .stdout(peer())
            .stderr(peer())
            .spawn()
            .unwrap();
        // Otherwise the terminal would not close with the child.
        drop(command);
        let master = File::from(master);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (master.try_clone().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut part) {
                into.lock().unwrap().extend_from_slice(&part[..count]);
            }
        });
        Self {
            master,
            seen,
            child,
        }
    }

    pub fn kind(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows `text` and returns its contents; discards earlier output.
    #[track_caller]
    pub fn until(&self, text: &str) -> String {
        let mut shown = String::new();
        let wanted = format!("{text:?}");
        wait_for(&wanted, DEADLINE, || {
            let seen = self.seen.lock().unwrap();
            shown = String::from_utf8_lossy(&seen).into_owned();
            shown.contains(text)
        });
        self.seen.lock().unwrap().clear();
        shown
    }

    /// Whether the received output contains this text. Keeps the output.
    pub fn shows(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).contains(text)
    }

    /// Whether the terminal is in canonical mode with echo, as a shell expects it.
    pub fn is_usual(&self) -> bool {
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// Whether echo is on.
    pub fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.master).unwrap().local_modes;
        modes.contains(LocalModes::ECHO)
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, size).unwrap();
        // The kernel sends it only to processes with this controlling terminal.
        self.send(Signal::WINCH);
    }

    pub fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its exit code.
    #[track_caller]
    pub fn end(&mut self) -> Option<i32> {
        let mut code = None;
        wait_for("its end", DEADLINE, || {
            let ended = self.child.try_wait().unwrap();
            code = ended.and_then(|status| status.code());
            ended.is_some()
        });
        code
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
