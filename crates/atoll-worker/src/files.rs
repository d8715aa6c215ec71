//! File operations in a sandbox, carried out by a helper process inside it that runs as the
//! requested user.
//!
//! Data passes through a pipe that this process created; no descriptor from inside a sandbox is
//! ever used here.

pub(crate) mod archive;
mod call;
mod entry;
mod reader;
mod search;
mod splice;
mod writer;

use std::sync::Arc;

use atoll_jail::wire::{self, FileOp, FromHelper};
use atoll_model::{Attributes, Error, FileDetails, FileEntry, RunAs, WriteOptions};

use crate::sandbox::Sandbox;
pub(crate) use call::HelperCall;
use entry::to_details;
pub use reader::FileReader;
pub(crate) use search::search;
pub use writer::FileWriter;

/// Checks a path: not empty, no NUL byte, at most 4096 bytes.
pub(crate) fn check_path(path: &[u8]) -> Result<Vec<u8>, Error> {
    let invalid = |message: &str| {
        Err(Error::invalid(
            "path",
            message,
            "pass a path in the sandbox",
        ))
    };
    match path {
        [] => invalid("the path is empty"),
        _ if path.contains(&0) => invalid("the path contains a NUL byte"),
        _ if path.len() > 4096 => invalid("the path is longer than 4096 bytes"),
        _ => Ok(path.to_vec()),
    }
}

pub(crate) async fn read(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    path: &[u8],
    offset: u64,
    length: Option<u64>,
) -> Result<FileReader, Error> {
    let work = FileOp::Read {
        path: check_path(path)?,
        offset,
        length,
    };
    FileReader::open(sandbox, caller, work).await
}

pub(crate) async fn write(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    path: &[u8],
    options: WriteOptions,
) -> Result<FileWriter, Error> {
    let WriteOptions {
        mode,
        in_place,
        parents,
    } = options;
    let work = FileOp::Write {
        path: check_path(path)?,
        mode,
        in_place,
        parents,
    };
    FileWriter::open(sandbox, caller, work).await
}

pub(crate) async fn write_with_attributes(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    path: &[u8],
    attributes: Attributes,
) -> Result<FileWriter, Error> {
    let values = attributes.values.into_iter();
    let work = FileOp::Put {
        path: check_path(path)?,
        attributes: wire::Attributes {
            prefix: attributes.prefix.into(),
            values: values
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        },
    };
    FileWriter::open(sandbox, caller, work).await
}

/// Describes a path and, up to `depth`, the entries below it; true if there are more than `limit`.
pub(crate) async fn describe(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    (path, depth, limit): (&[u8], u32, u32),
    prefix: &str,
) -> Result<(Vec<FileDetails>, bool), Error> {
    let work = FileOp::Describe {
        path: check_path(path)?,
        depth,
        limit,
        attributes: prefix.into(),
    };
    let convert = |word| match word {
        FromHelper::Described(all) => Some(all.into_iter().map(to_details).collect()),
        _ => None,
    };
    let call = HelperCall::start(sandbox, caller, work, None).await?;
    call.collect(convert, limit.max(1) as usize).await
}

/// Makes a call without data; at most `max` entries, and whether there are more.
pub(crate) async fn call(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    work: FileOp,
    max: usize,
) -> Result<(Vec<FileEntry>, bool), Error> {
    for path in paths_of(&work) {
        check_path(path)?;
    }
    HelperCall::start(sandbox, caller, work, None)
        .await?
        .entries(max)
        .await
}

fn paths_of(work: &FileOp) -> Vec<&Vec<u8>> {
    match work {
        FileOp::Read { path, .. }
        | FileOp::Write { path, .. }
        | FileOp::Stat { path, .. }
        | FileOp::List { path, .. }
        | FileOp::Mkdir { path, .. }
        | FileOp::Remove { path, .. }
        | FileOp::Chmod { path, .. }
        | FileOp::Watch { path, .. }
        | FileOp::Pack { path }
        | FileOp::Unpack { path }
        | FileOp::Search { path, .. }
        | FileOp::Describe { path, .. }
        | FileOp::Put { path, .. }
        | FileOp::Chown { path, .. } => vec![path],
        FileOp::Rename { from, to, .. } | FileOp::Copy { from, to, .. } => vec![from, to],
    }
}
