//! `execve`: its argument arrays, and the check of the working directory before it.

use std::ffi::{CStr, CString};
use std::io;

use super::check;

/// An `argv` or environment array for `execve`.
#[derive(Debug)]
pub(crate) struct Words {
    /// Owned here: it is what the pointers point at.
    #[allow(dead_code, reason = "the kernel reads it")]
    strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
    /// Index of the first word that `execve` gets.
    first: usize,
}

impl Words {
    pub(crate) fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr());
        Self {
            pointers: pointers.chain([std::ptr::null()]).collect(),
            strings,
            first: 0,
        }
    }

    /// The words of a program, with room for a shell's name before them.
    pub(crate) fn of_program(shell: &'static CStr, argv: Vec<CString>) -> Self {
        let mut words = Self::new(argv);
        words.pointers.insert(0, shell.as_ptr());
        words.first = 1;
        words
    }

    /// Makes them the shell's, to run the script at a place instead of the program. Takes nothing from the heap.
    pub(crate) fn become_script(&mut self, place: &CStr) {
        if let Some(name) = self.pointers.get_mut(1) {
            *name = place.as_ptr();
            self.first = 0;
        }
    }

    fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers[self.first..].as_ptr()
    }
}

/// Replaces this process by a program; returns only the reason why not. Takes nothing from the heap. The place of a script
/// that was put into the words must still be there.
pub(crate) fn execute(path: &CStr, argv: &Words, environment: &Words) -> io::Error {
    // SAFETY: both arrays end with a null pointer and their strings outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// The working directory can be reached from the root. Takes nothing from the heap.
pub(crate) fn is_below_root() -> io::Result<bool> {
    let mut path = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the kernel writes no more than the buffer holds. The C library would look for the path by itself.
    check(unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) })?;
    Ok(path[0] == b'/')
}
