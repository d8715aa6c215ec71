//! Test data that both ends can generate without storing it: a pattern that encodes its own position, and a hash.
//! The probe and the library compile this same file.

use std::io::{self, Read, Write};

/// A stream of lines of 16 bytes, each its own number in hexadecimal. Text, and a lost or doubled piece shows where.
#[derive(Debug, Clone)]
pub struct Pattern {
    position: u64,
    end: u64,
}

/// The first `bytes` bytes of the pattern that `probe spew` and `probe mkfile` write.
pub fn pattern(bytes: u64) -> Pattern {
    Pattern {
        position: 0,
        end: bytes,
    }
}

impl Pattern {
    /// The whole pattern in memory.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = self.clone();
        let mut bytes = vec![0; (self.end - self.position) as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += copy.fill(&mut bytes[filled..]);
        }
        bytes
    }

    fn fill(&mut self, into: &mut [u8]) -> usize {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let size = into
            .len()
            .min(usize::try_from(self.end - self.position).unwrap_or(usize::MAX));
        let mut filled = 0;
        while filled < size {
            let number = self.position / 16;
            let mut line = [b'\n'; 16];
            for (index, digit) in line[..15].iter_mut().enumerate() {
                *digit = DIGITS[(number >> (4 * (14 - index)) & 15) as usize];
            }
            let start = (self.position % 16) as usize;
            let piece = (16 - start).min(size - filled);
            into[filled..filled + piece].copy_from_slice(&line[start..start + piece]);
            filled += piece;
            self.position += piece as u64;
        }
        size
    }
}

impl Read for Pattern {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.fill(into))
    }
}

/// The 64-bit FNV-1a hash of a stream, with its length. Not a cryptographic hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fnv64 {
    /// The hash of what was written so far.
    pub hash: u64,
    /// Number of bytes so far.
    pub bytes: u64,
}

impl Default for Fnv64 {
    fn default() -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            bytes: 0,
        }
    }
}

impl Write for Fnv64 {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The 64-bit FNV-1a hash of bytes, as `probe hash` prints it.
pub fn fnv64(bytes: &[u8]) -> u64 {
    let mut hash = Fnv64::default();
    let _ = hash.write(bytes);
    hash.hash
}

/// Size of the file of [`Scribbles`], in bytes.
pub const SCRIBBLED: u64 = 1 << 20;

/// Writes of random bytes at random places, the same for the same seed: what `probe scribble` does.
#[derive(Debug, Clone)]
pub struct Scribbles {
    state: u64,
}

impl Scribbles {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// The next write: where it goes in a file of [`SCRIBBLED`] bytes, and its bytes.
    pub fn step(&mut self, bytes: &mut Vec<u8>) -> u64 {
        let length = 1 + self.random() as usize % 512;
        bytes.clear();
        while bytes.len() < length {
            let word = self.random();
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(length);
        self.random() % (SCRIBBLED - 512)
    }

    /// The part of a write that is appended to the other file.
    pub fn appended(bytes: &[u8]) -> &[u8] {
        &bytes[..bytes.len().min(32)]
    }
}
