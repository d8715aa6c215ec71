//! Types for file calls in a sandbox: who makes the call, options, and metadata of files.

use std::collections::BTreeMap;

/// Permissions that a file call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Authority {
    /// Permissions of the user.
    #[default]
    User,
    /// Permissions of root in the sandbox. Created files belong to the user.
    Root,
}

/// User and permissions of a file call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunAs {
    /// User name or number. `None`: the template's default user. Relative paths and `~` start at its home directory.
    pub user: Option<String>,
    /// Permissions of the call.
    pub authority: Authority,
}

impl RunAs {
    /// The root user of the sandbox.
    pub fn root() -> Self {
        Self {
            user: Some("root".into()),
            authority: Authority::User,
        }
    }
}

/// Options for writing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Permission bits. `None`: those of the existing file, or 0644 for a new one.
    pub mode: Option<u32>,
    /// Overwrite the existing file in place. Otherwise the content replaces it atomically when it is complete.
    pub in_place: bool,
    /// Create missing parent directories.
    pub parents: bool,
}

/// Type of a file system entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Device, socket or FIFO.
    Other,
}

/// Metadata of one file system entry, as `lstat` returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The requested path, or the path relative to the listed directory.
    pub path: Vec<u8>,
    /// Type of the entry.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// User id in the sandbox's user namespace.
    pub uid: u32,
    /// Group id in the sandbox's user namespace.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: i64,
    /// Target of a symbolic link, as stored in it.
    pub link: Option<Vec<u8>>,
}

/// Conditions of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchQuery {
    /// Glob pattern or substring of the file name. Empty: any name.
    pub name: Vec<u8>,
    /// Text in the file. Empty: search names only.
    pub text: Vec<u8>,
    /// Maximum number of hits.
    pub limit: u32,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchHit {
    /// The file. Its path is relative to the searched directory.
    pub entry: FileEntry,
    /// Line number and an excerpt of the line. `None` if only names were searched.
    pub line: Option<(u64, Vec<u8>)>,
}

/// Result of unpacking an archive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnpackSummary {
    /// Number of unpacked entries.
    pub entries: u64,
    /// Total size of their contents in bytes.
    pub bytes: u64,
    /// Number of entries that were not unpacked.
    pub skipped: u64,
    /// Name and reason of the first skipped entries.
    pub skipped_entries: Vec<(Vec<u8>, String)>,
}

/// Extended attributes of a file whose names have a common prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// The common prefix.
    pub prefix: String,
    /// Values by name without the prefix.
    pub values: BTreeMap<String, String>,
}

/// The entry that a symbolic link resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTarget {
    /// Path without symbolic links.
    pub path: Vec<u8>,
    /// Type of the entry.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
}

/// Metadata of a file with resolved names, link target and attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDetails {
    /// Metadata of the entry itself, with its absolute path.
    pub entry: FileEntry,
    /// Name of the owner, or its number if it has no name.
    pub owner: String,
    /// Name of the group, or its number if it has no name.
    pub group: String,
    /// Target of a symbolic link. `None` for other entries and broken links.
    pub target: Option<LinkTarget>,
    /// Extended attributes that have the requested prefix, by name without it.
    pub attributes: BTreeMap<String, String>,
}
