//! Streaming writes to a file in a sandbox.

use std::sync::Arc;

use atoll_jail::pipes::PIPE;
use atoll_jail::wire::{FileOp, ToHelper};
use atoll_model::{Code, Error, FileEntry, RunAs};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::HelperCall;
use crate::error::internal;
use crate::exec::{create_pipe, set_nonblocking};
use crate::sandbox::Sandbox;

/// A file that is being written. The write takes effect at `commit`; dropped before, it leaves no
/// trace.
#[derive(Debug)]
pub struct FileWriter {
    pub(super) pipe: Option<pipe::Sender>,
    pub(super) call: HelperCall,
}

impl FileWriter {
    /// Starts a call that takes data and takes effect after all of it was sent.
    pub(super) async fn open(
        sandbox: Arc<Sandbox>,
        caller: &RunAs,
        work: FileOp,
    ) -> Result<Self, Error> {
        let (inside, outside) = create_pipe()?;
        let _ = rustix::pipe::fcntl_setpipe_size(&outside, PIPE);
        let pipe = pipe::Sender::from_owned_fd(set_nonblocking(outside)?)
            .map_err(|error| internal("poll a pipe", &error))?;
        let mut call = HelperCall::start(sandbox, caller, work, Some(inside)).await?;
        // On a closed pipe and socket the helper removes what it has written; a killed one could
        // not.
        call.finished = true;
        Ok(Self {
            pipe: Some(pipe),
            call,
        })
    }

    /// Writes all bytes, waiting for the helper.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let written = pipe.write_all(bytes);
        match self
            .call
            .with_timeout(written, "the sandbox accepted no data")
            .await?
        {
            Ok(()) => Ok(()),
            // The helper closed its end and reports the reason.
            Err(_) => Err(self.helper_error().await),
        }
    }

    /// Commits the write and returns the file's new details.
    pub async fn commit(self) -> Result<FileEntry, Error> {
        let (entries, _) = self.finish_data().await?.entries(1).await?;
        entries
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(Code::Internal, "the sandbox did not describe the file"))
    }

    /// Ends the data and commits; the result is still to be received.
    pub(super) async fn finish_data(mut self) -> Result<HelperCall, Error> {
        self.pipe = None;
        if self.call.send(&ToHelper::Commit).await.is_err() {
            return Err(self.helper_error().await);
        }
        Ok(self.call)
    }

    pub(super) async fn helper_error(&mut self) -> Error {
        match self.call.next().await {
            Err(error) => error,
            Ok(_) => Error::new(
                Code::Internal,
                "the sandbox closed the file without a reason",
            ),
        }
    }
}
