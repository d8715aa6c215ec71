//! The work that helpers do with files.

use super::{Attributes, wire};

/// File work, done inside by a helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCall {
    /// Name or number; empty for the template's user. Relative paths start at its home.
    pub user: String,
    /// The rights that apply.
    pub authority: Authority,
    /// What to do.
    pub work: FileOp,
}
wire!(struct FileCall { user, authority, work });

/// The rights that a file call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// The user's.
    User,
    /// Root's of the sandbox; what is made belongs to the user.
    Root,
}
wire!(enum Authority { 0 => User, 1 => Root });

/// The kinds of file work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOp {
    /// Stream a regular file into the data pipe.
    Read {
        /// The file.
        path: Vec<u8>,
        /// First byte.
        offset: u64,
        /// At most so many bytes.
        length: Option<u64>,
    },
    /// Stream the data pipe into a file; it takes effect at [`ToHelper::Commit`](super::ToHelper::Commit).
    Write {
        /// The file.
        path: Vec<u8>,
        /// Permission bits; absent keeps those of a file that is there.
        mode: Option<u32>,
        /// Write into the file that is there instead of replacing it at the end.
        in_place: bool,
        /// Make missing directories above it.
        parents: bool,
    },
    /// Describe one path.
    Stat {
        /// The path.
        path: Vec<u8>,
        /// Describe what a symbolic link points to.
        follow: bool,
    },
    /// Describe what is below a directory.
    List {
        /// The directory.
        path: Vec<u8>,
        /// How many levels; 1 is the directory's own entries.
        depth: u32,
        /// At most so many entries.
        limit: u32,
    },
    /// Make a directory.
    Mkdir {
        /// The directory.
        path: Vec<u8>,
        /// Make missing ones above it, and be content if it is there.
        parents: bool,
        /// Permission bits.
        mode: u32,
    },
    /// Remove a file or directory.
    Remove {
        /// The path.
        path: Vec<u8>,
        /// Remove a directory with all that is in it.
        recursive: bool,
    },
    /// Rename.
    Rename {
        /// From.
        from: Vec<u8>,
        /// To.
        to: Vec<u8>,
        /// Replace what is there.
        replace: bool,
    },
    /// Copy a file, or a directory with all that is in it.
    Copy {
        /// From.
        from: Vec<u8>,
        /// To.
        to: Vec<u8>,
        /// Replace what is there.
        replace: bool,
    },
    /// Set permission bits.
    Chmod {
        /// The path.
        path: Vec<u8>,
        /// The bits.
        mode: u32,
    },
    /// Set owner and group, by name or number; empty leaves one as it is.
    Chown {
        /// The path.
        path: Vec<u8>,
        /// The owner.
        owner: String,
        /// The group.
        group: String,
    },
    /// Tell what happens in a directory, for as long as the server listens.
    Watch {
        /// The directory.
        path: Vec<u8>,
        /// And in all directories below it.
        recursive: bool,
        /// At most so many directories.
        limit: u32,
    },
    /// Stream a file, or a directory with all that is in it, into the data pipe as a tar archive.
    Pack {
        /// The file or directory.
        path: Vec<u8>,
    },
    /// Unpack a tar archive from the data pipe into a directory; the result follows [`ToHelper::Commit`](super::ToHelper::Commit).
    Unpack {
        /// The directory; made if it is missing.
        path: Vec<u8>,
    },
    /// Look for files below a directory.
    Search {
        /// The directory.
        path: Vec<u8>,
        /// A pattern of their names; empty for any.
        name: Vec<u8>,
        /// What is in them; empty for anything.
        text: Vec<u8>,
        /// At most so many places.
        limit: u32,
    },
    /// Say all there is to say of a path, or of what is below a directory: depth first, names in order.
    Describe {
        /// The path.
        path: Vec<u8>,
        /// How many levels; 0 is the path itself.
        depth: u32,
        /// At most so many entries.
        limit: u32,
        /// Tell extended attributes whose names begin so.
        attributes: Vec<u8>,
    },
    /// Stream the data pipe into the file that is there, or a new one. From its first byte on it is the user's and
    /// has these attributes, and no others with their prefix. Missing directories above it are made.
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
