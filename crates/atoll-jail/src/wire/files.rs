//! File operations of helpers.

use super::{Attributes, wire};

/// One file operation, executed by a helper in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCall {
    /// Name or number; empty for the template's user. Relative paths start at its home.
    pub user: String,
    /// Rights of the operation.
    pub authority: Authority,
    /// The operation.
    pub work: FileOp,
}
wire!(struct FileCall { user, authority, work });

/// Rights of a file operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// Those of the user.
    User,
    /// Those of root of the sandbox; created files belong to the user.
    Root,
}
wire!(enum Authority { 0 => User, 1 => Root });

/// A file operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOp {
    /// Stream a regular file into the data pipe.
    Read {
        /// The file.
        path: Vec<u8>,
        /// First byte.
        offset: u64,
        /// Maximum number of bytes; `None`: to the end.
        length: Option<u64>,
    },
    /// Stream the data pipe into a file; it takes effect at [`ToHelper::Commit`](super::ToHelper::Commit).
    Write {
        /// The file.
        path: Vec<u8>,
        /// Permission bits; `None` keeps those of an existing file.
        mode: Option<u32>,
        /// Write into the existing file instead of replacing it at the end.
        in_place: bool,
        /// Create missing parent directories.
        parents: bool,
    },
    /// Describe one path.
    Stat {
        /// The path.
        path: Vec<u8>,
        /// Describe the target of a symbolic link.
        follow: bool,
    },
    /// Describe the entries below a directory.
    List {
        /// The directory.
        path: Vec<u8>,
        /// Number of levels; 1 is only the entries of the directory.
        depth: u32,
        /// Maximum number of entries.
        limit: u32,
    },
    /// Create a directory.
    Mkdir {
        /// The directory.
        path: Vec<u8>,
        /// Create missing parents; an existing directory is no error.
        parents: bool,
        /// Permission bits.
        mode: u32,
    },
    /// Remove a file or directory.
    Remove {
        /// The path.
        path: Vec<u8>,
        /// Remove a directory with its contents.
        recursive: bool,
    },
    /// Rename.
    Rename {
        /// From.
        from: Vec<u8>,
        /// To.
        to: Vec<u8>,
        /// Replace an existing target.
        replace: bool,
    },
    /// Copy a file, or a directory with its contents.
    Copy {
        /// From.
        from: Vec<u8>,
        /// To.
        to: Vec<u8>,
        /// Replace an existing target.
        replace: bool,
    },
    /// Set permission bits.
    Chmod {
        /// The path.
        path: Vec<u8>,
        /// The bits.
        mode: u32,
    },
    /// Set owner and group, by name or number; an empty one is not changed.
    Chown {
        /// The path.
        path: Vec<u8>,
        /// The owner.
        owner: String,
        /// The group.
        group: String,
    },
    /// Report changes in a directory until the server closes the socket.
    Watch {
        /// The directory.
        path: Vec<u8>,
        /// Include all directories below it.
        recursive: bool,
        /// Maximum number of watched directories.
        limit: u32,
    },
    /// Stream a file, or a directory with its contents, into the data pipe as a tar archive.
    Pack {
        /// The file or directory.
        path: Vec<u8>,
    },
    /// Unpack a tar archive from the data pipe into a directory. The result is sent after
    /// [`ToHelper::Commit`](super::ToHelper::Commit).
    Unpack {
        /// The directory; created if it is missing.
        path: Vec<u8>,
    },
    /// Search files below a directory.
    Search {
        /// The directory.
        path: Vec<u8>,
        /// Pattern of the name; empty matches any.
        name: Vec<u8>,
        /// Text in the file; empty matches any.
        text: Vec<u8>,
        /// Maximum number of matches.
        limit: u32,
    },
    /// Describe a path, or the entries below a directory, in full: depth first, sorted by name.
    Describe {
        /// The path.
        path: Vec<u8>,
        /// Number of levels; 0 is only the path.
        depth: u32,
        /// Maximum number of entries.
        limit: u32,
        /// Prefix of the names of extended attributes to include.
        attributes: Vec<u8>,
    },
    /// Stream the data pipe into an existing or a new file. Before the first byte is written, the file belongs to the user
    /// and has exactly these attributes with their prefix. Missing parent directories are created.
    Put {
        /// The file.
        path: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
    },
}
wire!(enum FileOp {
    0 => Read { path, offset, length },
    1 => Write { path, mode, in_place, parents },
    2 => Stat { path, follow },
    3 => List { path, depth, limit },
    4 => Mkdir { path, parents, mode },
    5 => Remove { path, recursive },
    6 => Rename { from, to, replace },
    7 => Copy { from, to, replace },
    8 => Chmod { path, mode },
    9 => Chown { path, owner, group },
    10 => Watch { path, recursive, limit },
    11 => Pack { path },
    12 => Unpack { path },
    13 => Search { path, name, text, limit },
    14 => Describe { path, depth, limit, attributes },
    15 => Put { path, attributes },
});
