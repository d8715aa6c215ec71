//! Full description of a file system object.

use super::{Entry, wire};

/// Some of an object's extended attributes: those whose names begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Prefix of the names.
    pub prefix: Vec<u8>,
    /// Rest of each name, and its value.
    pub values: Vec<(Vec<u8>, Vec<u8>)>,
}
wire!(struct Attributes { prefix, values });

/// Final target of a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its path, without links.
    pub path: Vec<u8>,
    /// Its `st_mode`.
    pub mode: u32,
}
wire!(struct Target { path, mode });

/// Metadata of an object, with names of its owners, link target and attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDetails {
    /// Metadata of the object; the path is absolute.
    pub entry: Entry,
    /// Name of the owner, or the number if it has no name.
    pub owner: String,
    /// Name of the group, or the number if it has no name.
    pub group: String,
    /// Target of a symbolic link that is not dangling.
    pub target: Option<Target>,
    /// Attributes with the requested prefix; of the target if the object is a link.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}
wire!(struct FileDetails { entry, owner, group, target, attributes });
