//! An archive on its way here, from whoever sends it to the thread that unpacks it.

use std::io::{self, Read};

use tokio::sync::mpsc;

/// How many pieces may wait to be unpacked.
const WAITING: usize = 4;

/// Where an archive is sent to. One that is dropped before [`Sender::end`] was broken off.
#[derive(Debug)]
pub struct Sender {
    pieces: mpsc::Sender<Option<Vec<u8>>>,
}

/// What is unpacked.
#[derive(Debug)]
pub struct Stream {
    pieces: mpsc::Receiver<Option<Vec<u8>>>,
    piece: Vec<u8>,
    /// How much of it was read.
    read: usize,
    ended: bool,
}

/// The two ends of an archive's way.
pub fn stream() -> (Sender, Stream) {
    let (sender, pieces) = mpsc::channel(WAITING);
    let stream = Stream {
        pieces,
        piece: Vec::new(),
        read: 0,
        ended: false,
    };
    (Sender { pieces: sender }, stream)
}

impl Sender {
    /// Sends a piece; false if nobody wants any more.
    pub async fn send(&self, piece: Vec<u8>) -> bool {
        self.pieces.send(Some(piece)).await.is_ok()
    }

    /// All was sent.
    pub async fn end(self) {
        // Nobody is there only if it has failed already.
        let _ = self.pieces.send(None).await;
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.piece.len() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Some(piece)) => (self.piece, self.read) = (piece, 0),
                Some(None) => self.ended = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let rest = &self.piece[self.read..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        Ok(count)
    }
}
