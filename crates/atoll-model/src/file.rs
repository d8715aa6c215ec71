//! Files of a sandbox, as they are asked for and as they are.

use std::collections::BTreeMap;

/// Whose rights count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Authority {
    /// The user's.
    #[default]
    User,
    /// The sandbox's root's; what is made belongs to the user.
    Root,
}

/// For whom a file call is made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// Name or number; `None` is the template's user. Relative paths and `~` start at its home.
    pub user: Option<String>,
    /// Whose rights count.
    pub authority: Authority,
}

impl Caller {
    /// The sandbox's root, acting for itself.
    pub fn root() -> Self {
        Self {
            user: Some("root".into()),
            authority: Authority::User,
        }
    }
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Permission bits; `None` keeps those of a file that is there, else 0644.
    pub mode: Option<u32>,
    /// Write into the file that is there. Otherwise it is replaced at the end, at once.
    pub in_place: bool,
    /// Make missing directories above it.
    pub parents: bool,
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, socket or FIFO.
    Other,
}

/// One object of a sandbox's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As asked for, or relative to the listed directory.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner, as the sandbox counts.
    pub uid: u32,
    /// Group, as the sandbox counts.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// Where a link points.
    pub link: Option<Vec<u8>>,
}

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// A pattern of names, or a part of them; empty for any.
    pub name: Vec<u8>,
    /// Text in files; empty for anything.
    pub text: Vec<u8>,
    /// How many places at most.
    pub limit: u32,
}

/// A place that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file; its path is relative to the directory.
    pub entry: Entry,
    /// The number of the line and some of it, if text was looked for.
    pub line: Option<(u64, Vec<u8>)>,
}

/// What came of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unpacked {
    /// Entries that are there now.
    pub entries: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Entries that were left out.
    pub left_out: u64,
    /// The first of them: name and why.
    pub told: Vec<(Vec<u8>, String)>,
}

/// Some of a file's extended attributes: those whose names begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// How their names begin.
    pub prefix: String,
    /// What follows the prefix, and the value.
    pub values: BTreeMap<String, String>,
}

/// Where a symbolic link leads in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its path, without links.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Its permission bits.
    pub mode: u32,
}

/// An object and what a look at it alone does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The object itself, with its whole path.
    pub entry: Entry,
    /// Its owner's name, or number if it has none.
    pub owner: String,
    /// Its group's name, or number if it has none.
    pub group: String,
    /// Where it leads, if it is a link that leads anywhere.
    pub target: Option<Target>,
    /// Its attributes with the prefix that was asked for, which the names are without.
    pub attributes: BTreeMap<String, String>,
}
