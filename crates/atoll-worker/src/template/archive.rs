//! Opens archives: plain, gzip or zstd. The unpacked stream as a whole has a limit.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Archives have headers and padding besides contents: 2,000,000 entries with three blocks each.
const OVERHEAD: u64 = 4 << 30;

/// The entries of an archive, in order.
pub(super) type Entries = atoll_jail::archive::Entries<Limited>;

/// Opens an archive that may unpack to `max_bytes` at most.
pub(super) fn open(path: &Path, max_bytes: u64) -> io::Result<Entries> {
    read(File::open(path)?, max_bytes)
}

/// Reads an archive that comes from somewhere.
pub(super) fn read(input: impl Read + 'static, max_bytes: u64) -> io::Result<Entries> {
    let mut input = BufReader::with_capacity(1 << 17, input);
    let magic = input.fill_buf()?;
    let reader: Box<dyn Read> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(input))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(zstd::stream::read::Decoder::with_buffer(input)?)
    } else if magic.starts_with(b"\xfd7zXZ") {
        return Err(bad(
            "it is compressed with xz; unpack it with `xz -d`, or use gzip or zstd",
        ));
    } else if magic.starts_with(b"BZh") {
        return Err(bad(
            "it is compressed with bzip2; unpack it with `bzip2 -d`, or use gzip or zstd",
        ));
    } else if magic.starts_with(b"PK\x03\x04") {
        return Err(bad("it is a zip archive; unpack it and add the directory"));
    } else {
        Box::new(input)
    };
    Ok(Entries::new(Limited {
        reader,
        left: max_bytes.saturating_add(OVERHEAD),
    }))
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A stream that ends with an error when it is longer than allowed: a decompressor can make terabytes of a megabyte.
pub(super) struct Limited {
    reader: Box<dyn Read>,
    left: u64,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}
