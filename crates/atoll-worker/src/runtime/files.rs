//! File calls. Each runs in the sandbox, in a helper process of its own.

use atoll_jail::wire::FileOp;
use atoll_model::{
    Attributes, Code, Error, FileDetails, RunAs, SandboxId, SearchHit, SearchQuery, WriteOptions,
};

use super::LocalRuntime;
use crate::files::archive::Unpacking;
use crate::files::{self, FileReader, FileWriter};

impl LocalRuntime {
    /// Reads a file as a stream.
    pub async fn read_file(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
    ) -> Result<FileReader, Error> {
        files::read(self.find(id)?, caller, path, 0, None).await
    }

    /// Reads a range of a file as a stream.
    pub async fn read_range(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        offset: u64,
        length: u64,
    ) -> Result<FileReader, Error> {
        files::read(self.find(id)?, caller, path, offset, Some(length)).await
    }

    /// Writes a file as a stream.
    pub async fn write_file(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        options: WriteOptions,
    ) -> Result<FileWriter, Error> {
        files::write(self.find(id)?, caller, path, options).await
    }

    /// Writes as a stream into an existing or new file; missing parent directories are created.
    /// Before the first byte is written, the file belongs to the user and has exactly these
    /// attributes with their prefix.
    pub async fn write_file_with_attributes(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        attributes: Attributes,
    ) -> Result<FileWriter, Error> {
        files::write_with_attributes(self.find(id)?, caller, path, attributes).await
    }

    /// Details of a path, with its extended attributes that begin with `prefix`.
    pub async fn describe(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        prefix: &str,
    ) -> Result<FileDetails, Error> {
        let query = (path, 0, 1);
        let (all, _) = files::describe(self.find(id)?, caller, query, prefix).await?;
        all.into_iter()
            .next()
            .ok_or_else(|| Error::new(Code::Internal, "the sandbox did not describe the file"))
    }

    /// Details of the entries below a directory, up to `depth` levels deep and at most `limit`; a
    /// directory comes before its entries, names are sorted. True if entries were left out.
    pub async fn describe_tree(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        (path, depth, limit): (&[u8], u32, u32),
        prefix: &str,
    ) -> Result<(Vec<FileDetails>, bool), Error> {
        let query = (path, depth.max(1), limit);
        files::describe(self.find(id)?, caller, query, prefix).await
    }

    async fn run(&self, id: &SandboxId, caller: &RunAs, work: FileOp) -> Result<(), Error> {
        files::call(self.find(id)?, caller, work, 1)
            .await
            .map(|_| ())
    }

    /// Metadata of a path; with `follow`, of a symbolic link's target.
    pub async fn stat(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        follow: bool,
    ) -> Result<atoll_model::FileEntry, Error> {
        let work = FileOp::Stat {
            path: path.into(),
            follow,
        };
        let (entries, _) = files::call(self.find(id)?, caller, work, 1).await?;
        entries
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(Code::Internal, "the sandbox did not describe the file"))
    }

    /// Lists the entries below a directory, up to `depth` levels deep and at most `limit`. True if
    /// entries were left out.
    pub async fn list_files(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        depth: u32,
        limit: u32,
    ) -> Result<(Vec<atoll_model::FileEntry>, bool), Error> {
        let work = FileOp::List {
            path: path.into(),
            depth,
            limit,
        };
        files::call(self.find(id)?, caller, work, limit as usize).await
    }

    /// Creates a directory. With `parents`, missing parents are created and an existing directory
    /// is no error.
    pub async fn make_directory(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        mode: u32,
        parents: bool,
    ) -> Result<(), Error> {
        self.run(
            id,
            caller,
            FileOp::Mkdir {
                path: path.into(),
                parents,
                mode,
            },
        )
        .await
    }

    /// Removes a file or a directory.
    pub async fn remove(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        recursive: bool,
    ) -> Result<(), Error> {
        self.run(
            id,
            caller,
            FileOp::Remove {
                path: path.into(),
                recursive,
            },
        )
        .await
    }

    /// Renames a file or a directory.
    pub async fn rename(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error> {
        self.run(
            id,
            caller,
            FileOp::Rename {
                from: from.into(),
                to: to.into(),
                replace,
            },
        )
        .await
    }

    /// Copies a file, or a directory recursively.
    pub async fn copy(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        from: &[u8],
        to: &[u8],
        replace: bool,
    ) -> Result<(), Error> {
        self.run(
            id,
            caller,
            FileOp::Copy {
                from: from.into(),
                to: to.into(),
                replace,
            },
        )
        .await
    }

    /// Sets permission bits.
    pub async fn chmod(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        mode: u32,
    ) -> Result<(), Error> {
        self.run(
            id,
            caller,
            FileOp::Chmod {
                path: path.into(),
                mode,
            },
        )
        .await
    }

    /// Sets owner and group; an empty name leaves one unchanged.
    pub async fn chown(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        owner: &str,
        group: &str,
    ) -> Result<(), Error> {
        let work = FileOp::Chown {
            path: path.into(),
            owner: owner.into(),
            group: group.into(),
        };
        self.run(id, caller, work).await
    }

    /// Reads a file, or a directory recursively, as a tar archive.
    pub async fn pack(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
    ) -> Result<FileReader, Error> {
        files::archive::pack(self.find(id)?, caller, path).await
    }

    /// Unpacks a tar archive into a directory, as a stream.
    pub async fn unpack(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
    ) -> Result<Unpacking, Error> {
        files::archive::unpack(self.find(id)?, caller, path).await
    }

    /// Searches files below a directory. True if there may be more hits.
    pub async fn search(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        query: SearchQuery,
    ) -> Result<(Vec<SearchHit>, bool), Error> {
        files::search(self.find(id)?, caller, path, query).await
    }

    /// Watches a directory; every change after this returns is reported.
    pub async fn watch(
        &self,
        id: &SandboxId,
        caller: &RunAs,
        path: &[u8],
        options: atoll_model::WatchOptions,
    ) -> Result<crate::watch::Watch, Error> {
        crate::watch::watch(self.find(id)?, caller, path, options).await
    }
}
