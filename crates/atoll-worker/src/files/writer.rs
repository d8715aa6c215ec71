//! A file of a sandbox, written as a stream.

use std::sync::Arc;

use atoll_jail::pipes::PIPE;
use atoll_jail::wire::{FileWork, ToHelper};
use atoll_model::{Caller, Code, Entry, Error};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::HelperCall;
use crate::error::internal;
use crate::exec::{create_pipe, set_nonblocking};
use crate::sandbox::Sandbox;

/// A file being written. Nothing has happened until `commit`; dropped before, nothing will have.
#[derive(Debug)]
pub struct FileWriter {
    pub(super) pipe: Option<pipe::Sender>,
    pub(super) call: HelperCall,
}

impl FileWriter {
    /// Begins work that takes data, and takes effect when all of it was sent.
    pub(super) async fn open(
        sandbox: Arc<Sandbox>,
        caller: &Caller,
        work: FileWork,
    ) -> Result<Self, Error> {
        let (inside, outside) = create_pipe()?;
        let _ = rustix::pipe::fcntl_setpipe_size(&outside, PIPE);
        let pipe = pipe::Sender::from_owned_fd(set_nonblocking(outside)?)
            .map_err(|error| internal("watch a pipe", &error))?;
        let mut call = HelperCall::start(sandbox, caller, work, Some(inside)).await?;
        // When its pipe and socket are closed, the helper takes away what it has begun; a killed one
        // could not.
        call.finished = true;
        Ok(Self {
            pipe: Some(pipe),
            call,
        })
    }

    /// Writes all of these bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let written = pipe.write_all(bytes);
        match self
            .call
            .with_timeout(written, "the sandbox took nothing")
            .await?
        {
            Ok(()) => Ok(()),
            // The helper has closed its end: it says why.
            Err(_) => Err(self.helper_error().await),
        }
    }

    /// Makes the write take effect; the file as it is then.
    pub async fn commit(self) -> Result<Entry, Error> {
        let (entries, _) = self.finish_data().await?.entries(1).await?;
        entries
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(Code::Internal, "the sandbox did not describe the file"))
    }

    /// Says that all was sent; what the helper says to that is still to be heard.
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
