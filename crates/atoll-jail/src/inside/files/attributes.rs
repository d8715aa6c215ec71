//! Extended attributes of a file whose names begin with a prefix, read and replaced as a set.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::wire::Attributes;

/// Maximum size of a list of names and of a value in the kernel.
const LONGEST: usize = 64 * 1024;
/// Maximum bytes of one file's attributes in a message.
const MAX_REPORTED_BYTES: usize = 5 * 1024;

/// The attributes of a path's target, up to the limit; empty if the file system has none.
pub(super) fn read(path: &Path, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    if prefix.is_empty() {
        return Vec::new();
    }
    let mut reported = 0;
    let list = |buffer: &mut [u8]| rustix::fs::listxattr(path, buffer);
    let mut found: Vec<_> = names(list, prefix)
        .into_iter()
        .filter_map(|name| {
            let mut value = vec![0; MAX_REPORTED_BYTES];
            let length = rustix::fs::getxattr(path, &name, &mut *value).ok()?;
            value.truncate(length);
            let name = name.as_bytes().get(prefix.len()..)?.to_vec();
            reported += name.len() + value.len();
            (reported <= MAX_REPORTED_BYTES).then_some((name, value))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Sets these attributes of a file and removes the others with their prefix.
pub(super) fn replace(file: &File, attributes: &Attributes) -> rustix::io::Result<()> {
    let Attributes { prefix, values } = attributes;
    if prefix.is_empty() {
        return Ok(());
    }
    let full =
        |name: &Vec<u8>| CString::new([prefix.as_slice(), name].concat()).map_err(|_| Errno::INVAL);
    let wanted: Vec<CString> = values
        .iter()
        .map(|(name, _)| full(name))
        .collect::<Result<_, _>>()?;
    for name in names(
        |buffer| rustix::fs::flistxattr(file.as_fd(), buffer),
        prefix,
    ) {
        if !wanted.contains(&name) {
            rustix::fs::fremovexattr(file, &name)?;
        }
    }
    for (name, (_, value)) in wanted.iter().zip(values) {
        rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())?;
    }
    Ok(())
}

fn names(list: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>, prefix: &[u8]) -> Vec<CString> {
    let mut buffer = vec![0; LONGEST];
    // A file system without attributes has an empty list.
    let length = list(&mut buffer).unwrap_or(0);
    buffer.truncate(length);
    let names = buffer.split(|byte| *byte == 0);
    names
        .filter(|name| name.starts_with(prefix))
        .filter_map(|name| CString::new(name).ok())
        .collect()
}
