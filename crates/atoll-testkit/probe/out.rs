//! Output of the probe: whole lines, each in one write, so that the lines of processes that share a pipe do not
//! mix. A closed pipe ends the probe, as it ends any program.

use std::io;
use std::os::fd::RawFd;

use crate::nr;
use crate::sys::{self, Errno};

/// Writes all bytes to a descriptor.
pub(crate) fn write_all(fd: RawFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match sys::call(
            nr::WRITE,
            &[fd as u64, sys::slice(bytes), bytes.len() as u64],
        ) {
            Ok(written) => bytes = &bytes[written as usize..],
            Err(Errno::EINTR) => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(())
}

fn line(fd: RawFd, text: &str) {
    let mut bytes = Vec::with_capacity(text.len() + 1);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b'\n');
    if write_all(fd, &bytes).is_err() {
        sys::exit(74);
    }
}

/// A line on stdout.
pub(crate) fn say(text: &str) {
    line(1, text);
}

/// A line on stderr.
pub(crate) fn complain(text: &str) {
    line(2, text);
}

/// Makes one word of a text: white space and control characters become `\xNN`.
pub(crate) fn word(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || character.is_whitespace() {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// The attempt worked.
pub(crate) fn ok(what: &str, detail: &str) {
    say(format!("{} ok {detail}", word(what)).trim_end());
}

/// The attempt was refused.
pub(crate) fn refused(what: &str, errno: Errno, detail: &str) {
    say(format!("{} errno {errno} {detail}", word(what)).trim_end());
}

/// The attempt was not made.
pub(crate) fn skipped(what: &str, why: &str) {
    say(&format!("{} skipped {why}", word(what)));
}

/// A raw call's answer; the number it returned is the detail.
pub(crate) fn attempt(what: &str, answer: Result<u64, Errno>) -> bool {
    match answer {
        Ok(value) => ok(what, &format!("{}", value as i64)),
        Err(errno) => refused(what, errno, ""),
    }
    answer.is_ok()
}

/// An answer of the standard library.
pub(crate) fn answer<T>(what: &str, answer: &io::Result<T>, detail: impl FnOnce(&T) -> String) {
    match answer {
        Ok(value) => ok(what, &detail(value)),
        Err(problem) => refused(what, Errno::of(problem), ""),
    }
}
