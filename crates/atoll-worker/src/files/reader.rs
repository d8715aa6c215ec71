//! Streaming reads of a file in a sandbox.

use std::sync::Arc;

use atoll_jail::pipes::PIPE;
use atoll_jail::wire::{FileOp, FromHelper};
use atoll_model::{Code, Error, FileEntry, RunAs};
use bytes::BufMut;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::HelperCall;
use super::entry::to_entry;
use crate::error::internal;
use crate::exec::{create_pipe, set_nonblocking};
use crate::sandbox::Sandbox;

/// A file that is being read.
#[derive(Debug)]
pub struct FileReader {
    /// Details of the file when it was opened.
    pub entry: FileEntry,
    pub(super) pipe: pipe::Receiver,
    pub(super) call: HelperCall,
}

impl FileReader {
    /// Starts a call that returns one entry and then data.
    pub(super) async fn open(
        sandbox: Arc<Sandbox>,
        caller: &RunAs,
        work: FileOp,
    ) -> Result<Self, Error> {
        let (outside, inside) = create_pipe()?;
        let _ = rustix::pipe::fcntl_setpipe_size(&outside, PIPE);
        let pipe = pipe::Receiver::from_owned_fd(set_nonblocking(outside)?)
            .map_err(|error| internal("poll a pipe", &error))?;
        let mut call = HelperCall::start(sandbox, caller, work, Some(inside)).await?;
        match call.next().await? {
            FromHelper::Entries(mut entries) if entries.len() == 1 => {
                let entry = to_entry(entries.remove(0));
                Ok(Self { entry, pipe, call })
            }
            _ => Err(Error::new(
                Code::Internal,
                "the sandbox did not describe the file",
            )),
        }
    }

    /// Reads into the free capacity of a buffer; 0 at the end. A read that fails half-way is an
    /// error, never a short file.
    pub async fn read(&mut self, mut buffer: impl BufMut + Send) -> Result<usize, Error> {
        let read = self.pipe.read_buf(&mut buffer);
        match self
            .call
            .with_timeout(read, "the file returned no data")
            .await?
        {
            Ok(0) => {
                self.expect_done().await?;
                Ok(0)
            }
            Ok(read) => Ok(read),
            Err(error) => Err(internal("read a file", &error)),
        }
    }

    /// Reads to the end; fails if there are more than `limit` bytes.
    pub async fn read_to_end(mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        loop {
            all.reserve(64 << 10);
            if self.read(&mut all).await? == 0 {
                return Ok(all);
            }
            if all.len() > limit {
                return Err(Error::new(
                    Code::QuotaExceeded,
                    format!("the file is longer than {limit} bytes"),
                ));
            }
        }
    }

    pub(super) async fn expect_done(&mut self) -> Result<(), Error> {
        if !self.call.finished {
            self.call.next().await?;
            self.call.finished = true;
        }
        Ok(())
    }
}
