//! Reader of tar archives: plain, gzip or zstd, with a limit for the unpacked stream.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Headers and padding besides contents: 2,000,000 entries with three blocks each.
const MAX_OVERHEAD: u64 = 4 << 30;

/// The entries of an archive, in order.
pub(super) type Entries = atoll_jail::archive::Entries<LimitedReader>;

/// Opens an archive file that may unpack to `max_bytes` at most.
pub(super) fn open(path: &Path, max_bytes: u64) -> io::Result<Entries> {
    from_reader(File::open(path)?, max_bytes)
}

/// Reads an archive from a stream, with the same limit.
pub(super) fn from_reader(input: impl Read + 'static, max_bytes: u64) -> io::Result<Entries> {
    let mut input = BufReader::with_capacity(1 << 17, input);
    let magic = input.fill_buf()?;
    let reader: Box<dyn Read> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(input))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(zstd::stream::read::Decoder::with_buffer(input)?)
    } else if magic.starts_with(b"\xfd7zXZ") {
        return Err(invalid_data(
            "it is compressed with xz; unpack it with `xz -d`, or use gzip or zstd",
        ));
    } else if magic.starts_with(b"BZh") {
        return Err(invalid_data(
            "it is compressed with bzip2; unpack it with `bzip2 -d`, or use gzip or zstd",
        ));
    } else if magic.starts_with(b"PK\x03\x04") {
        return Err(invalid_data(
            "it is a zip archive; unpack it and add the directory",
        ));
    } else {
        Box::new(input)
    };
    Ok(Entries::new(LimitedReader {
        reader,
        remaining: max_bytes.saturating_add(MAX_OVERHEAD),
    }))
}

fn invalid_data(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// A stream that fails when it is longer than allowed: a decompressor can make terabytes of a
/// megabyte.
pub(super) struct LimitedReader {
    reader: Box<dyn Read>,
    remaining: u64,
}

impl Read for LimitedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.remaining = self
            .remaining
            .checked_sub(read as u64)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}
