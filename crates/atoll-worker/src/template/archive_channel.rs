//! Bounded channel for an uploaded archive, from the request task to the thread that unpacks it.

use std::io::{self, Read};

use tokio::sync::mpsc;

/// Maximum number of chunks in the channel.
const MAX_QUEUED_CHUNKS: usize = 4;

/// Sending end. If it is dropped before [`ArchiveSender::end`], the upload was aborted.
#[derive(Debug)]
pub struct ArchiveSender {
    chunks: mpsc::Sender<Option<Vec<u8>>>,
}

/// Receiving end; implements [`Read`].
#[derive(Debug)]
pub struct ArchiveReader {
    chunks: mpsc::Receiver<Option<Vec<u8>>>,
    chunk: Vec<u8>,
    /// Bytes of `chunk` that were read.
    consumed: usize,
    is_complete: bool,
}

/// Creates the channel.
pub fn archive_channel() -> (ArchiveSender, ArchiveReader) {
    let (sender, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let reader = ArchiveReader {
        chunks,
        chunk: Vec::new(),
        consumed: 0,
        is_complete: false,
    };
    (ArchiveSender { chunks: sender }, reader)
}

impl ArchiveSender {
    /// Sends a chunk; false if the receiver is gone.
    pub async fn send(&self, chunk: Vec<u8>) -> bool {
        self.chunks.send(Some(chunk)).await.is_ok()
    }

    /// Marks the archive as complete.
    pub async fn end(self) {
        // The receiver is gone only after an error.
        let _ = self.chunks.send(None).await;
    }
}

impl Read for ArchiveReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.consumed == self.chunk.len() && !self.is_complete {
            match self.chunks.blocking_recv() {
                Some(Some(chunk)) => (self.chunk, self.consumed) = (chunk, 0),
                Some(None) => self.is_complete = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let rest = &self.chunk[self.consumed..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.consumed += count;
        Ok(count)
    }
}
