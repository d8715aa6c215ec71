//! Messages between a server and a file helper.

use super::{FileDetails, WatchChange, wire};

/// Messages from a server to a file helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHelper {
    /// All data was sent. A write takes effect only after this message.
    Commit,
    /// Report all changes up to now, then send `Drained`.
    Drain {
        /// Repeated in the response.
        token: u32,
    },
}
wire!(enum ToHelper { 0 => Commit, 1 => Drain { token } });

/// Messages from a file helper. Not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromHelper {
    /// A part of the result; more may follow.
    Entries(Vec<Entry>),
    /// The operation has succeeded.
    Done {
        /// The list is incomplete because of its limit.
        truncated: bool,
    },
    /// The operation failed.
    Failed {
        /// Kind of the failure.
        why: Failure,
        /// Error number of the kernel.
        errno: i32,
        /// The path; for `Archive` the reason; empty if the helper could not be started.
        path: Vec<u8>,
    },
    /// Changes in a watched directory, in order.
    Changes(Vec<WatchChange>),
    /// Response to `Drain`. The first one, with token 0, is sent without a request when the watch is active.
    Drained {
        /// Token of the request.
        token: u32,
    },
    /// Some matches; more may follow.
    SearchHit(Vec<SearchHit>),
    /// Some skipped entries; more may follow.
    SkippedEntry(Vec<SkippedEntry>),
    /// An archive was unpacked.
    Unpacked {
        /// Number of unpacked entries.
        entries: u64,
        /// Total size of their contents in bytes.
        bytes: u64,
        /// Number of skipped entries; not all of them are named.
        left_out: u64,
    },
    /// Some descriptions; more may follow.
    Described(Vec<FileDetails>),
}
wire!(enum FromHelper {
    0 => Entries(entries),
    1 => Done { truncated },
    2 => Failed { why, errno, path },
    3 => Changes(changes),
    4 => Drained { token },
    5 => SearchHit(found),
    6 => SkippedEntry(left_out),
    7 => Unpacked { entries, bytes, left_out },
    8 => Described(described),
});

/// Kind of a failed file operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Described by errno.
    Kernel,
    /// The user is not known in the sandbox.
    User,
    /// Neither a regular file nor a link to one.
    NotAFile,
    /// Not a directory.
    NotADirectory,
    /// Not a tar archive, or a broken one.
    Archive,
}
wire!(enum Failure { 0 => Kernel, 1 => User, 2 => NotAFile, 3 => NotADirectory, 4 => Archive });

/// A match of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchHit {
    /// The file; its path is relative to the directory.
    pub entry: Entry,
    /// Number of the line, from 1; 0 for a search by name only.
    pub line: u64,
    /// Text of the line, possibly truncated.
    pub text: Vec<u8>,
}
wire!(struct SearchHit { entry, line, text });

/// An entry of an archive that was not unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    /// Its name, possibly truncated.
    pub name: Vec<u8>,
    /// The reason.
    pub why: String,
}
wire!(struct SkippedEntry { name, why });

/// Metadata of one file system object, as reported by the helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path as requested, or relative to the listed directory.
    pub path: Vec<u8>,
    /// `st_mode`, type and permission bits.
    pub mode: u32,
    /// User id in the sandbox.
    pub uid: u32,
    /// Group id in the sandbox.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: i64,
    /// Target of a symbolic link; otherwise empty.
    pub link: Vec<u8>,
}
wire!(struct Entry { path, mode, uid, gid, size, modified, link });
