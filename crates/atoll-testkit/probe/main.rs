//! The probe: one static program that stands for every program inside a sandbox. By its first argument it is an everyday
//! command (`echo`, `cat`, `sleep`, so that a template of this one file can be tested) or an attack.
//!
//! It never assumes a privilege, a file system or a helper, and it never judges: an attack prints for each attempt one line
//! `<what> <ok|errno NAME|signal NAME|exited N|skipped> [detail]` and ends with 0 if it could do its work, whatever the
//! attempts gave. The test decides. Attacks that would hurt a host refuse to run in the initial pid namespace.

#![no_main]
#![allow(
    unsafe_code,
    reason = "system calls as a hostile program makes them; each block says why it holds"
)]
#![allow(
    clippy::unnecessary_wraps,
    reason = "commands have one signature, whether or not they can fail"
)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the probe knows the system call numbers of Linux on x86-64 only");

mod attack;
mod everyday;
#[allow(
    unreachable_pub,
    dead_code,
    reason = "shared with the library, where it is public"
)]
mod mountinfo;
mod names;
mod nr;
mod out;
#[allow(
    unreachable_pub,
    reason = "shared with the library, where it is public"
)]
mod screen;
#[allow(
    unreachable_pub,
    dead_code,
    reason = "shared with the library, where it is public"
)]
mod stream;
mod sys;

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Result of a command: an exit code, or an error message for stderr and exit code 1.
pub(crate) type Outcome = Result<u8, String>;

/// Where a command may run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The command is harmless.
    Anywhere,
    /// If it were permitted it would hurt the machine: not in the initial pid namespace.
    Inside,
}

/// One subcommand.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) usage: &'static str,
    pub(crate) reach: Reach,
    pub(crate) run: fn(&Args) -> Outcome,
}

impl Command {
    pub(crate) const fn new(
        name: &'static str,
        usage: &'static str,
        run: fn(&Args) -> Outcome,
    ) -> Self {
        Self {
            name,
            usage,
            reach: Reach::Anywhere,
            run,
        }
    }

    pub(crate) const fn inside(
        name: &'static str,
        usage: &'static str,
        run: fn(&Args) -> Outcome,
    ) -> Self {
        Self {
            name,
            usage,
            reach: Reach::Inside,
            run,
        }
    }
}

/// The arguments after the subcommand's name.
pub(crate) struct Args(Vec<OsString>);

impl Args {
    pub(crate) fn all(&self) -> &[OsString] {
        &self.0
    }

    pub(crate) fn raw(&self, index: usize, what: &str) -> Result<&OsStr, String> {
        self.0
            .get(index)
            .map(OsString::as_os_str)
            .ok_or_else(|| format!("{what} is missing"))
    }

    pub(crate) fn path(&self, index: usize, what: &str) -> Result<&Path, String> {
        self.raw(index, what).map(Path::new)
    }

    pub(crate) fn text(&self, index: usize, what: &str) -> Result<&str, String> {
        self.raw(index, what)?
            .to_str()
            .ok_or_else(|| format!("{what} is not UTF-8"))
    }

    pub(crate) fn number<N: std::str::FromStr>(
        &self,
        index: usize,
        what: &str,
    ) -> Result<N, String> {
        let text = self.text(index, what)?;
        text.parse()
            .map_err(|_| format!("{what} is not a number: {text}"))
    }

    pub(crate) fn number_or<N: std::str::FromStr>(
        &self,
        index: usize,
        what: &str,
        default: N,
    ) -> Result<N, String> {
        if index < self.0.len() {
            self.number(index, what)
        } else {
            Ok(default)
        }
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.0.iter().any(|given| given == word)
    }
}

fn commands() -> impl Iterator<Item = &'static Command> {
    everyday::commands().chain(attack::commands())
}

fn list(_: &Args) -> Outcome {
    for command in commands() {
        out::say(&format!("{} {}", command.name, command.usage));
    }
    Ok(0)
}

/// The initial pid namespace has had this fixed number since 2013. A sandbox never shows it, a host always does.
fn on_the_host() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new("pid:[4026531836]"))
}

fn dispatch(mut words: Vec<OsString>) -> Outcome {
    if words.len() < 2 {
        return Err("usage: probe COMMAND [ARGUMENTS]; `probe list` shows the commands".to_owned());
    }
    let name = words.remove(1);
    words.remove(0);
    let args = Args(words);
    if name == "list" {
        return list(&args);
    }
    let command = commands()
        .find(|command| name == command.name)
        .ok_or_else(|| format!("no command {}", name.display()))?;
    if command.reach == Reach::Inside && on_the_host() {
        out::complain(&format!(
            "probe {}: refused, this is the host's own pid namespace",
            command.name
        ));
        return Ok(3);
    }
    (command.run)(&args).map_err(|problem| format!("{}: {problem}", command.name))
}

/// The C entry point. Not Rust's own `main`: its runtime opens descriptors, changes SIGPIPE and sets a signal stack, and
/// the probe must show what it was given.
#[unsafe(no_mangle)]
extern "C" fn main(_count: i32, _arguments: *const *const u8) -> i32 {
    match dispatch(std::env::args_os().collect()) {
        Ok(code) => i32::from(code),
        Err(problem) => {
            out::complain(&format!("probe {problem}"));
            1
        }
    }
}
