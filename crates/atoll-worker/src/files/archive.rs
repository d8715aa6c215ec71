//! Archives and searches: work that helpers of older versions do not know.

use std::sync::Arc;

use atoll_jail::wire::{self, FileWork, FromHelper};
use atoll_model::{Caller, Code, Error, Found, Search, Unpacked};

use super::{Call, Reader, Writer, checked, entry, open_reader, open_writer};
use crate::sandbox::Sandbox;

/// More entries that were left out are not told by name.
const MOST_TOLD: usize = 100;
/// The longest pattern or text that is looked for.
const LONGEST: usize = 1024;

pub(crate) async fn pack(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    path: &[u8],
) -> Result<Reader, Error> {
    let path = checked(path)?;
    open_reader(sandbox, caller, FileWork::Pack { path }).await
}

pub(crate) async fn unpack(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    path: &[u8],
) -> Result<Unpacking, Error> {
    let path = checked(path)?;
    let writer = open_writer(sandbox, caller, FileWork::Unpack { path }).await?;
    Ok(Unpacking { writer })
}

/// An archive being unpacked. What has come is unpacked at once; dropped half-way, that much stays.
#[derive(Debug)]
pub struct Unpacking {
    writer: Writer,
}

impl Unpacking {
    /// Where the archive goes.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// All was sent; what came of it.
    pub async fn finish(self) -> Result<Unpacked, Error> {
        let mut call = self.writer.sent().await?;
        let mut unpacked = Unpacked::default();
        loop {
            match call.next().await? {
                FromHelper::LeftOut(some) if unpacked.told.len() < MOST_TOLD => {
                    let some = some.into_iter().map(|left| (left.name, left.why));
                    unpacked.told.extend(some);
                }
                FromHelper::Unpacked {
                    entries,
                    bytes,
                    left_out,
                } => {
                    (unpacked.entries, unpacked.bytes) = (entries, bytes);
                    unpacked.left_out = left_out;
                }
                FromHelper::Done { .. } => {
                    call.finished = true;
                    return Ok(unpacked);
                }
                // A hijacked helper could go on for ever.
                _ => return Err(Error::new(Code::Internal, "the sandbox told nonsense")),
            }
        }
    }
}

/// What was found, and whether there may be more.
pub(crate) async fn search(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    path: &[u8],
    wanted: Search,
) -> Result<(Vec<Found>, bool), Error> {
    for (field, value) in [("query", &wanted.name), ("content", &wanted.text)] {
        if value.len() > LONGEST || value.contains(&0) {
            let message = format!("{field} has more than {LONGEST} bytes, or a NUL byte");
            return Err(Error::invalid(field, message, "look for something shorter"));
        }
    }
    let most = wanted.limit as usize;
    let work = FileWork::Search {
        path: checked(path)?,
        name: wanted.name,
        text: wanted.text,
        limit: wanted.limit,
    };
    let mut call = Call::start(sandbox, caller, work, None).await?;
    let mut all: Vec<Found> = Vec::new();
    loop {
        match call.next().await? {
            FromHelper::Found(some) if all.len() + some.len() <= most => {
                all.extend(some.into_iter().map(found));
            }
            FromHelper::Done { truncated } => {
                call.finished = true;
                return Ok((all, truncated));
            }
            // A hijacked helper could go on for ever.
            _ => return Err(Error::new(Code::Internal, "the sandbox told nonsense")),
        }
    }
}

fn found(found: wire::Found) -> Found {
    Found {
        entry: entry(found.entry),
        line: (found.line > 0).then_some((found.line, found.text)),
    }
}
