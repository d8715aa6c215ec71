//! What a server and a file helper say to each other.

use super::{FileDetails, WatchChange, wire};

/// What the server says to a file helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHelper {
    /// All data was sent: make the write take effect. Without it nothing does.
    Commit,
    /// Tell all changes that have happened by now, then answer.
    Drain {
        /// Comes back in the answer.
        token: u32,
    },
}
wire!(enum ToHelper { 0 => Commit, 1 => Drain { token } });

/// What a file helper says. Hostile by assumption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromHelper {
    /// A part of the result; more may follow.
    Entries(Vec<Entry>),
    /// The work is done.
    Done {
        /// A list left something out because of its limit.
        truncated: bool,
    },
    /// The work failed.
    Failed {
        /// Why, where errno does not say it.
        why: Failure,
        /// The kernel's answer.
        errno: i32,
        /// The path it was about; or what is wrong with an archive; or nothing if the helper could not be started.
        path: Vec<u8>,
    },
    /// What happened in a watched directory, in order.
    Changes(Vec<WatchChange>),
    /// The answer to `Drain`; the first one, 0, is sent without a request when the watch has begun.
    Drained {
        /// The token of the question.
        token: u32,
    },
    /// Some of what was looked for; more may follow.
    SearchHit(Vec<SearchHit>),
    /// Some of what was not unpacked; more may follow.
    SkippedEntry(Vec<SkippedEntry>),
    /// An archive was unpacked.
    Unpacked {
        /// Its entries, without those that were left out.
        entries: u64,
        /// Bytes of their contents.
        bytes: u64,
        /// Number of skipped entries; not all of them are named.
        left_out: u64,
    },
    /// Some of what was to be described; more may follow.
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

/// Why file work failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// As errno says.
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

/// A place that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchHit {
    /// The file; its path is relative to the directory.
    pub entry: Entry,
    /// The line, counted from 1; 0 if only the name was looked for.
    pub line: u64,
    /// The line's text, perhaps cut.
    pub text: Vec<u8>,
}
wire!(struct SearchHit { entry, line, text });

/// An entry of an archive that was not unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    /// Its name, perhaps cut.
    pub name: Vec<u8>,
    /// Why.
    pub why: String,
}
wire!(struct SkippedEntry { name, why });

/// One file system object, as the helper saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path as requested, or relative to the listed directory.
    pub path: Vec<u8>,
    /// `st_mode`, type and permission bits.
    pub mode: u32,
    /// Owner inside.
    pub uid: u32,
    /// Group inside.
    pub gid: u32,
    /// Size.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: i64,
    /// Where a symbolic link points; empty otherwise.
    pub link: Vec<u8>,
}
wire!(struct Entry { path, mode, uid, gid, size, modified, link });
