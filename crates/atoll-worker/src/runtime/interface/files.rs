//! File calls of the local runtime.

use async_trait::async_trait;
use atoll_model::runtime::{ArchiveWriter, ByteSink, FileReader, FileWatch, FileWriter, Files};
use atoll_model::{
    Attributes, Error, FileDetails, FileEntry, RunAs, SandboxId, SearchHit, SearchQuery,
    UnpackSummary, WatchEvent, WatchOptions, WriteOptions,
};
use bytes::{BufMut as _, BytesMut};

use super::LocalRuntime;
use crate::{Unpacking, Watch, files};

#[async_trait]
impl Files for LocalRuntime {
    async fn read_file(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
    ) -> Result<Box<dyn FileReader>, Error> {
        Ok(Box::new(Self::read_file(self, id, run_as, path).await?))
    }

    async fn read_range(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        offset: u64,
        length: u64,
    ) -> Result<Box<dyn FileReader>, Error> {
        Ok(Box::new(
            Self::read_range(self, id, run_as, path, offset, length).await?,
        ))
    }

    async fn write_file(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        options: WriteOptions,
    ) -> Result<Box<dyn FileWriter>, Error> {
        Ok(Box::new(
            Self::write_file(self, id, run_as, path, options).await?,
        ))
    }

    async fn write_file_with_attributes(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        attributes: Attributes,
    ) -> Result<Box<dyn FileWriter>, Error> {
        Ok(Box::new(
            Self::write_file_with_attributes(self, id, run_as, path, attributes).await?,
        ))
    }

    async fn describe(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        prefix: &str,
    ) -> Result<FileDetails, Error> {
        Self::describe(self, id, run_as, path, prefix).await
    }

    async fn describe_tree(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        tree: (&[u8], u32, u32),
        prefix: &str,
    ) -> Result<(Vec<FileDetails>, bool), Error> {
        Self::describe_tree(self, id, run_as, tree, prefix).await
    }

    async fn stat(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        follow: bool,
    ) -> Result<FileEntry, Error> {
        Self::stat(self, id, run_as, path, follow).await
    }

    async fn list_files(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        depth: u32,
        limit: u32,
    ) -> Result<(Vec<FileEntry>, bool), Error> {
        Self::list_files(self, id, run_as, path, depth, limit).await
    }

    async fn make_directory(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        mode: u32,
        parents: bool,
    ) -> Result<(), Error> {
        Self::make_directory(self, id, run_as, path, mode, parents).await
    }

    async fn remove(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        recursive: bool,
    ) -> Result<(), Error> {
        Self::remove(self, id, run_as, path, recursive).await
    }

    async fn rename(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error> {
        Self::rename(self, id, run_as, from, to, replace).await
    }

    async fn copy(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error> {
        Self::copy(self, id, run_as, from, to, replace).await
    }

    async fn chmod(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        mode: u32,
    ) -> Result<(), Error> {
        Self::chmod(self, id, run_as, path, mode).await
    }

    async fn chown(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        owner: &str,
        group: &str,
    ) -> Result<(), Error> {
        Self::chown(self, id, run_as, path, owner, group).await
    }

    async fn pack(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
    ) -> Result<Box<dyn FileReader>, Error> {
        Ok(Box::new(Self::pack(self, id, run_as, path).await?))
    }

    async fn unpack(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
    ) -> Result<Box<dyn ArchiveWriter>, Error> {
        Ok(Box::new(Self::unpack(self, id, run_as, path).await?))
    }

    async fn search(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        query: SearchQuery,
    ) -> Result<(Vec<SearchHit>, bool), Error> {
        Self::search(self, id, run_as, path, query).await
    }

    async fn watch(
        &self,
        id: &SandboxId,
        run_as: &RunAs,
        path: &[u8],
        options: WatchOptions,
    ) -> Result<Box<dyn FileWatch>, Error> {
        Ok(Box::new(
            Self::watch(self, id, run_as, path, options).await?,
        ))
    }
}

#[async_trait]
impl FileReader for files::FileReader {
    fn entry(&self) -> &FileEntry {
        &self.entry
    }

    async fn read(&mut self, buffer: &mut BytesMut, limit: usize) -> Result<usize, Error> {
        buffer.reserve(limit);
        Self::read(self, buffer.limit(limit)).await
    }
}

#[async_trait]
impl ByteSink for files::FileWriter {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Self::write(self, bytes).await
    }
}

#[async_trait]
impl FileWriter for files::FileWriter {
    async fn commit(self: Box<Self>) -> Result<FileEntry, Error> {
        (*self).commit().await
    }
}

#[async_trait]
impl ByteSink for Unpacking {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.writer().write(bytes).await
    }
}

#[async_trait]
impl ArchiveWriter for Unpacking {
    async fn finish(self: Box<Self>) -> Result<UnpackSummary, Error> {
        (*self).finish().await
    }
}

#[async_trait]
impl FileWatch for Watch {
    async fn next(&mut self) -> Result<Option<WatchEvent>, Error> {
        Self::next(self).await
    }

    async fn drain(&mut self) -> Result<Vec<WatchEvent>, Error> {
        Self::drain(self).await
    }
}
