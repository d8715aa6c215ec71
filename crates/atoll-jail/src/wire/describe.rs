//! All that can be said of a file system object.

use super::{Entry, wire};

/// Some of an object's extended attributes: those whose names begin with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// How their names begin.
    pub prefix: Vec<u8>,
    /// What follows the prefix, and the value.
    pub values: Vec<(Vec<u8>, Vec<u8>)>,
}
wire!(struct Attributes { prefix, values });

/// Where a symbolic link leads in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its path, without links.
    pub path: Vec<u8>,
    /// Its `st_mode`.
    pub mode: u32,
}
wire!(struct Target { path, mode });

/// An object and what a look at it alone does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDetails {
    /// The object itself, with its whole path.
    pub entry: Entry,
    /// Its owner's name, or number if it has none.
    pub owner: String,
    /// Its group's name, or number if it has none.
    pub group: String,
    /// Where it leads, if it is a link that leads anywhere.
    pub target: Option<Target>,
    /// Attributes with the requested prefix, of the target if it is a link.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}
wire!(struct FileDetails { entry, owner, group, target, attributes });
