//! File calls of a runtime. They run in the sandbox, as the given user.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::BytesMut;

use crate::{
    Attributes, Error, FileDetails, FileEntry, RunAs, SandboxId, SearchHit, SearchQuery,
    UnpackSummary, WatchEvent, WatchOptions, WriteOptions,
};

/// File calls in the sandboxes of a runtime.
#[async_trait]
pub trait Files: Debug + Send + Sync {
    /// Reads a file as a stream.
    async fn read_file(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
    ) -> Result<Box<dyn FileReader>, Error>;

    /// Reads a range of a file as a stream.
    async fn read_range(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        offset: u64,
        length: u64,
    ) -> Result<Box<dyn FileReader>, Error>;

    /// Writes a file as a stream.
    async fn write_file(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        options: WriteOptions,
    ) -> Result<Box<dyn FileWriter>, Error>;

    /// Writes as a stream into an existing or new file; missing parent directories are created. Before the first byte is
    /// written, the file belongs to the user and has exactly these attributes with their prefix.
    async fn write_file_with_attributes(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        attributes: Attributes,
    ) -> Result<Box<dyn FileWriter>, Error>;

    /// Details of a path, with its extended attributes that begin with `prefix`.
    async fn describe(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        prefix: &str,
    ) -> Result<FileDetails, Error>;

    /// Details of the entries below a directory, up to `depth` levels deep and at most `limit`; a directory comes before
    /// its entries, names are sorted. True if entries were left out.
    async fn describe_tree(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        (path, depth, limit): (&[u8], u32, u32),
        prefix: &str,
    ) -> Result<(Vec<FileDetails>, bool), Error>;

    /// Metadata of a path; with `follow`, of a symbolic link's target.
    async fn stat(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        follow: bool,
    ) -> Result<FileEntry, Error>;

    /// Lists the entries below a directory, up to `depth` levels deep and at most `limit`. True if entries were left out.
    async fn list_files(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        depth: u32,
        limit: u32,
    ) -> Result<(Vec<FileEntry>, bool), Error>;

    /// Creates a directory. With `parents`, missing parents are created and an existing directory is no error.
    async fn make_directory(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        mode: u32,
        parents: bool,
    ) -> Result<(), Error>;

    /// Removes a file or a directory.
    async fn remove(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        recursive: bool,
    ) -> Result<(), Error>;

    /// Renames a file or a directory.
    async fn rename(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error>;

    /// Copies a file, or a directory recursively.
    async fn copy(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error>;

    /// Sets permission bits.
    async fn chmod(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        mode: u32,
    ) -> Result<(), Error>;

    /// Sets owner and group; an empty name leaves one unchanged.
    async fn chown(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        owner: &str,
        group: &str,
    ) -> Result<(), Error>;

    /// Reads a file, or a directory recursively, as a tar archive.
    async fn pack(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
    ) -> Result<Box<dyn FileReader>, Error>;

    /// Unpacks a tar archive into a directory, as a stream.
    async fn unpack(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
    ) -> Result<Box<dyn ArchiveWriter>, Error>;

    /// Searches files below a directory. True if there may be more hits.
    async fn search(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        query: SearchQuery,
    ) -> Result<(Vec<SearchHit>, bool), Error>;

    /// Watches a directory; every change after this returns is reported.
    async fn watch(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        options: WatchOptions,
    ) -> Result<Box<dyn FileWatch>, Error>;
}

/// A file that is being read.
#[async_trait]
pub trait FileReader: Debug + Send + Sync {
    /// Metadata of the file when it was opened.
    fn entry(&self) -> &FileEntry;

    /// Appends up to `limit` bytes to the buffer and returns their number; 0 at the end. A read that fails half-way is
    /// an error, never a short file.
    async fn read(&mut self, buffer: &mut BytesMut, limit: usize) -> Result<usize, Error>;
}

/// Destination of a stream of bytes.
#[async_trait]
pub trait ByteSink: Debug + Send {
    /// Writes all bytes.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error>;
}

/// A file that is being written. The write takes effect at `commit`; dropped before, it leaves no trace.
#[async_trait]
pub trait FileWriter: ByteSink {
    /// Commits the write and returns the new metadata.
    async fn commit(self: Box<Self>) -> Result<FileEntry, Error>;
}

/// An archive that is being unpacked while it arrives. Dropping it half-way leaves the entries unpacked so far.
#[async_trait]
pub trait ArchiveWriter: ByteSink {
    /// Ends the archive and waits for the result.
    async fn finish(self: Box<Self>) -> Result<UnpackSummary, Error>;
}

/// A watch on a directory, until it is dropped.
#[async_trait]
pub trait FileWatch: Debug + Send {
    /// Waits for the next event; `None` after the end. Cancel-safe.
    async fn next(&mut self) -> Result<Option<WatchEvent>, Error>;

    /// All events before this call that were not returned yet.
    async fn drain(&mut self) -> Result<Vec<WatchEvent>, Error>;
}
