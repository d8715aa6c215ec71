//! Reads the entries of a tar archive: GNU and pax long names; GNU sparse files. For templates, outside, and for file
//! helpers, inside.
//!
//! Invariant: memory stays small whatever the archive contains: names and extended headers have a limit. (The `tar` crate's own
//! iterator reads a long name of any length into memory, so only its header type is used.) Only `placement` touches a
//! file system.

mod name;
mod placement;

use std::io::{self, Read};

use tar::{EntryType, GnuExtSparseHeader, Header};

pub use name::{Name, split};
pub use placement::{CopyError, modification_time, replace_existing};

/// The only extended attribute that is read: programs such as `ping` need it.
pub const CAPABILITY: &str = "security.capability";

const BLOCK: u64 = 512;

/// Maximum bytes of a name or an extended header.
const MAX_EXTENDED_BYTES: u64 = 1 << 20;

/// Maximum segments of a sparse file.
const MAX_SEGMENTS: usize = 1 << 16;

/// One entry of an archive.
#[derive(Debug)]
pub struct Entry {
    /// Path in the archive, unchecked.
    pub name: Vec<u8>,
    /// Target of a link; otherwise empty.
    pub link: Vec<u8>,
    /// Type of the entry.
    pub kind: EntryType,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// Length of the unpacked file in bytes.
    pub size: u64,
    /// Value of `security.capability`.
    pub capability: Option<Vec<u8>>,
    /// Segments of a sparse file: offset and length.
    pub pieces: Option<Vec<(u64, u64)>>,
}

/// The entries of an archive, in order.
#[derive(Debug)]
pub struct Entries<R> {
    input: R,
    /// Unread bytes of the current entry: contents and padding.
    contents: u64,
    padding: u64,
}

/// Values of extended headers; they apply to the next entry.
#[derive(Debug, Default)]
struct Extended {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<(i64, u32)>,
    capability: Option<Vec<u8>>,
    sparse: bool,
}

impl<R: Read> Entries<R> {
    /// Reads entries from `input`.
    pub fn new(input: R) -> Self {
        Self {
            input,
            contents: 0,
            padding: 0,
        }
    }

    /// Returns the reader, positioned after the last entry.
    pub fn into_inner(self) -> R {
        self.input
    }

    /// The next entry; skips what was not read of the previous one.
    #[expect(
        clippy::should_implement_trait,
        reason = "an entry's contents are read here before the next"
    )]
    pub fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut extended = Extended::default();
        loop {
            self.skip_contents()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let kind = header.entry_type();
            let stored = if kind.is_hard_link() {
                0
            } else {
                check_size(header.entry_size()?)?
            };
            match kind {
                EntryType::GNULongName => extended.name = Some(self.long_name(stored)?),
                EntryType::GNULongLink => extended.link = Some(self.long_name(stored)?),
                EntryType::XHeader => extended.read(&self.extended_header(stored)?)?,
                EntryType::XGlobalHeader => drop(self.extended_header(stored)?),
                _ => return self.entry(&header, kind, stored, extended).map(Some),
            }
        }
    }

    fn entry(
        &mut self,
        header: &Header,
        kind: EntryType,
        stored: u64,
        extended: Extended,
    ) -> io::Result<Entry> {
        let name = extended
            .name
            .unwrap_or_else(|| header.path_bytes().into_owned());
        if extended.sparse {
            let name = String::from_utf8_lossy(&name);
            return Err(invalid(format!(
                "{name:?} is stored sparse in the pax format; pack it without --sparse"
            )));
        }
        let stored = if kind.is_hard_link() {
            0
        } else {
            check_size(extended.size.unwrap_or(stored))?
        };
        let (size, pieces) = if kind.is_gnu_sparse() {
            self.pieces(header, stored)?
        } else {
            (stored, None)
        };
        (self.contents, self.padding) = (stored, padding(stored));
        let link = match extended.link {
            Some(link) => link,
            None => header
                .link_name_bytes()
                .map(std::borrow::Cow::into_owned)
                .unwrap_or_default(),
        };
        // Old archives mark a directory only by a trailing slash.
        let kind = if kind.is_file() && name.ends_with(b"/") {
            EntryType::Directory
        } else {
            kind
        };
        Ok(Entry {
            name,
            link,
            kind,
            mode: header.mode()?,
            uid: saturate_id(extended.uid.map_or_else(|| header.uid(), Ok)?),
            gid: saturate_id(extended.gid.map_or_else(|| header.gid(), Ok)?),
            modified: extended
                .modified
                .map_or_else(|| header.mtime().map(|time| (time.cast_signed(), 0)), Ok)?,
            size,
            capability: extended.capability,
            pieces,
        })
    }

    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        // An archive may end at a header boundary: not every writer appends empty blocks.
        let first = self.input.read(&mut bytes[..1])?;
        if first == 0 {
            return Ok(None);
        }
        self.input.read_exact(&mut bytes[1..])?;
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum: u32 = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| {
                if (148..156).contains(&at) {
                    32
                } else {
                    u32::from(*byte)
                }
            })
            .sum();
        match header.cksum() {
            Ok(stored) if stored == sum => Ok(Some(header)),
            _ => Err(invalid(
                "a header's check sum is wrong: it is damaged, or not a tar archive",
            )),
        }
    }

    fn extended_header(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > MAX_EXTENDED_BYTES {
            return Err(invalid(format!(
                "an entry's name or extended header is longer than {MAX_EXTENDED_BYTES} bytes"
            )));
        }
        let mut data = vec![0; size as usize];
        self.input.read_exact(&mut data)?;
        self.padding = padding(size);
        Ok(data)
    }

    fn long_name(&mut self, size: u64) -> io::Result<Vec<u8>> {
        let mut name = self.extended_header(size)?;
        name.truncate(
            name.iter()
                .position(|byte| *byte == 0)
                .unwrap_or(name.len()),
        );
        Ok(name)
    }

    /// The map of a GNU sparse file: its length, and its segments.
    #[expect(clippy::type_complexity, reason = "used once")]
    fn pieces(
        &mut self,
        header: &Header,
        stored: u64,
    ) -> io::Result<(u64, Option<Vec<(u64, u64)>>)> {
        let gnu = header
            .as_gnu()
            .ok_or_else(|| invalid("a sparse file has no GNU header"))?;
        let size = gnu.real_size()?;
        let mut pieces = Vec::new();
        let mut note = |block: &tar::GnuSparseHeader| -> io::Result<()> {
            if !block.is_empty() {
                pieces.push((block.offset()?, block.length()?));
            }
            if pieces.len() > MAX_SEGMENTS {
                Err(invalid("a sparse file has too many pieces"))
            } else {
                Ok(())
            }
        };
        gnu.sparse.iter().try_for_each(&mut note)?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = GnuExtSparseHeader::new();
            self.input.read_exact(block.as_mut_bytes())?;
            block.sparse().iter().try_for_each(&mut note)?;
            more = block.is_extended();
        }
        let inside = pieces
            .iter()
            .all(|(offset, length)| offset.checked_add(*length).is_some_and(|end| end <= size));
        let total = pieces
            .iter()
            .try_fold(0_u64, |sum, (_, length)| sum.checked_add(*length));
        if inside && total == Some(stored) {
            Ok((size, Some(pieces)))
        } else {
            Err(invalid("a sparse file's map is wrong"))
        }
    }

    fn skip_contents(&mut self) -> io::Result<()> {
        let left = self.contents + self.padding;
        (self.contents, self.padding) = (0, 0);
        if io::copy(&mut (&mut self.input).take(left), &mut io::sink())? == left {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Reads the contents of the current entry.
impl<R: Read> Read for Entries<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.contents)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.input.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.contents -= read as u64;
        Ok(read)
    }
}

impl Extended {
    /// Reads the records of a pax header: `LENGTH KEY=VALUE\n`, where the value may be any bytes.
    fn read(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() && data[0] != 0 {
            let record =
                take_record(&mut data).ok_or_else(|| invalid("an extended header is malformed"))?;
            let (key, value) = record;
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number(value)?),
                b"uid" => self.uid = Some(number(value)?),
                b"gid" => self.gid = Some(number(value)?),
                b"mtime" => self.modified = Some(time(value)?),
                _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ if key
                    .strip_prefix(b"SCHILY.xattr.")
                    .is_some_and(|name| name == CAPABILITY.as_bytes()) =>
                {
                    self.capability = Some(value.to_vec());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn take_record<'a>(data: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let space = data.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
    let (record, rest) = data.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    *data = rest;
    Some((&record[..equals], &record[equals + 1..]))
}

fn number(value: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| invalid("an extended header has a number that is none"))
}

/// Seconds with a fraction, which may be negative.
fn time(value: &[u8]) -> io::Result<(i64, u32)> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds = seconds
        .parse()
        .map_err(|_| invalid("an extended header has a time that is none"))?;
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    Ok((seconds, digits.parse().unwrap_or(0)))
}

fn saturate_id(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

/// Rejects sizes that no file can have, so that sums of sizes cannot overflow.
fn check_size(size: u64) -> io::Result<u64> {
    if size < 1 << 62 {
        Ok(size)
    } else {
        Err(invalid("an entry's size is impossible"))
    }
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK) - size
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}
