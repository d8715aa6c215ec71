//! The one protocol between server, keeper and PID 1.
//!
//! Messages travel over `SOCK_SEQPACKET` sockets: one message, one packet, descriptors beside it.
//! Descriptors go *in* (server → keeper → sandbox); the only ones that come out are the keeper's,
//! which is trusted. Messages of PID 1 are not trusted: bounded, decoded without panics, and never
//! accompanied by descriptors.
//!
//! Both ends are mostly built from one source, but a server may meet the keeper, and the sandboxes, of
//! another version. The first message of each has its range of versions, [`OLDEST`] to [`VERSION`]. If the ranges
//! overlap, they communicate, and neither sends a message that the other's version does not
//! have. The encoding of the two `Hello`s, and of a `Hold` without a sandbox, never changes.

mod boot;
mod codec;
mod describe;
mod files;
mod helper;
mod init;
mod keeper;
mod socket;
mod watch;

#[cfg(test)]
mod tests;

pub use boot::{Boot, Mount, Size, Source, User};
pub use codec::{Decode, DecodeError, Encode};
pub use describe::{Attributes, FileDetails, Target};
pub use files::{Authority, FileCall, FileOp};
pub use helper::{Entry, Failure, FromHelper, SearchHit, SkippedEntry, ToHelper};
pub use init::{Exec, FromInit, Part, Streams, ToInit};
pub use keeper::{FromKeeper, ToKeeper};
pub use socket::{Channel, Packet, pair};
pub use watch::WatchChange;

pub(crate) use codec::wire;

/// The version of everything in this module. Raise it with any change to a message.
pub const VERSION: u32 = 6;
/// The oldest version that is supported. Raise it when a message changes or is removed, not when one is added.
pub const OLDEST: u32 = 5;

/// The protocol versions that a process supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRange {
    /// The newest one.
    pub version: u32,
    /// The oldest one.
    pub oldest: u32,
}

/// The versions of this build, behind a marker in the binary. The test of upgrades changes the numbers in a copy of the
/// binary, which is then a build of another protocol version.
#[repr(C, align(16))]
struct Stamp {
    #[allow(dead_code, reason = "read in the file, not by the program")]
    marker: [u8; 16],
    version: u32,
    oldest: u32,
}

static STAMP: Stamp = Stamp {
    marker: *b"\x7fatoll-protocol\x7f",
    version: VERSION,
    oldest: OLDEST,
};

impl VersionRange {
    /// The versions that this build supports.
    pub fn ours() -> Self {
        // `black_box`, so that the compiler does not replace the read by constants.
        let stamp = std::hint::black_box(&STAMP);
        Self {
            version: stamp.version,
            oldest: stamp.oldest,
        }
    }

    /// Whether this build supports one of the versions.
    pub fn is_compatible(self) -> bool {
        let ours = Self::ours();
        self.version >= ours.oldest && self.oldest <= ours.version
    }
}

impl Encode for VersionRange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.oldest.encode(out);
    }
}

impl Decode for VersionRange {
    /// Version 5 sent one number. Later versions may send more fields, which are ignored.
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let version = u32::decode(input)?;
        let oldest = if input.is_empty() {
            version
        } else {
            u32::decode(input)?
        };
        *input = &[];
        Ok(Self { version, oldest })
    }
}

/// A setup step that failed: its name and the kernel's errno.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The step, with its path.
    pub step: String,
    /// Error number of the kernel.
    pub errno: i32,
}
wire!(struct Fault { step, errno });
