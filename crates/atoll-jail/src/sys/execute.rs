//! `execve`: its argument arrays, and the check of the working directory before it.

use std::ffi::{CStr, CString};
use std::io;

use super::check;

/// An `argv` or environment array for `execve`.
#[derive(Debug)]
pub(crate) struct StringArray {
    /// Owns the strings that `pointers` refer to.
    #[allow(dead_code, reason = "the kernel reads it")]
    strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
    /// Index of the first pointer that is passed to `execve`.
    first: usize,
}

impl StringArray {
    pub(crate) fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr());
        Self {
            pointers: pointers.chain([std::ptr::null()]).collect(),
            strings,
            first: 0,
        }
    }

    /// Arguments of a program, with room for the name of a shell before them.
    pub(crate) fn with_shell(shell: &'static CStr, argv: Vec<CString>) -> Self {
        let mut words = Self::new(argv);
        words.pointers.insert(0, shell.as_ptr());
        words.first = 1;
        words
    }

    /// Changes the arguments to those of the shell, which runs the script at `path`. Does not allocate.
    pub(crate) fn use_shell(&mut self, path: &CStr) {
        if let Some(name) = self.pointers.get_mut(1) {
            *name = path.as_ptr();
            self.first = 0;
        }
    }

    fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers[self.first..].as_ptr()
    }
}

/// Replaces this process by a program; returns only the error. Does not allocate. The path that was passed to
/// `use_shell` must still be valid.
pub(crate) fn execute(path: &CStr, argv: &StringArray, environment: &StringArray) -> io::Error {
    // SAFETY: both arrays end with a null pointer and their strings outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Whether the working directory is reachable from the root. Does not allocate.
pub(crate) fn is_below_root() -> io::Result<bool> {
    let mut path = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the kernel writes at most the length of the buffer. The C library would search for an unreachable path.
    check(unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) })?;
    Ok(path[0] == b'/')
}
