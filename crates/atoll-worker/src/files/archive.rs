//! Transfer of directory trees as tar archives.

use std::sync::Arc;

use atoll_jail::wire::{FileOp, FromHelper};
use atoll_model::{Error, RunAs, UnpackSummary};

use super::call::protocol_error;
use super::{FileReader, FileWriter, check_path};
use crate::sandbox::Sandbox;

/// Skipped entries that are reported by name.
const MAX_SKIPPED_NAMES: usize = 100;

pub(crate) async fn pack(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    path: &[u8],
) -> Result<FileReader, Error> {
    let path = check_path(path)?;
    FileReader::open(sandbox, caller, FileOp::Pack { path }).await
}

pub(crate) async fn unpack(
    sandbox: Arc<Sandbox>,
    caller: &RunAs,
    path: &[u8],
) -> Result<Unpacking, Error> {
    let path = check_path(path)?;
    let writer = FileWriter::open(sandbox, caller, FileOp::Unpack { path }).await?;
    Ok(Unpacking { writer })
}

/// An archive that is being unpacked while it arrives. Dropping it half-way leaves the entries
/// unpacked so far.
#[derive(Debug)]
pub struct Unpacking {
    writer: FileWriter,
}

impl Unpacking {
    /// The archive's bytes are written here.
    pub fn writer(&mut self) -> &mut FileWriter {
        &mut self.writer
    }

    /// Ends the archive and waits for the result.
    pub async fn finish(self) -> Result<UnpackSummary, Error> {
        let mut call = self.writer.finish_data().await?;
        let mut unpacked = UnpackSummary::default();
        loop {
            match call.next().await? {
                FromHelper::SkippedEntry(some)
                    if unpacked.skipped_entries.len() < MAX_SKIPPED_NAMES =>
                {
                    let some = some.into_iter().map(|left| (left.name, left.why));
                    unpacked.skipped_entries.extend(some);
                }
                FromHelper::Unpacked {
                    entries,
                    bytes,
                    left_out,
                } => {
                    (unpacked.entries, unpacked.bytes) = (entries, bytes);
                    unpacked.skipped = left_out;
                }
                FromHelper::Done { .. } => {
                    call.finished = true;
                    return Ok(unpacked);
                }
                _ => return Err(protocol_error()),
            }
        }
    }
}
