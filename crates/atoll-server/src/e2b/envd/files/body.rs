//! The body of an upload as it comes, unpacked if it is packed.

use std::io::Write as _;
use std::time::Duration;

use atoll_model::Error;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use flate2::write::MultiGzDecoder;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};

use crate::e2b::error::{Answer, Refusal};
use crate::file_body;

/// How much is unpacked at a time: a byte becomes a thousand at most, so this much never becomes a lot.
const PIECE: usize = 8 << 10;
/// How long, and how much, somebody may go on sending what is not wanted any more.
const PATIENCE: Duration = Duration::from_secs(30);
const MOST: usize = 1 << 30;

/// What is left of it.
pub(super) struct Body(BoxStream<'static, Result<Bytes, Error>>);

impl Body {
    pub(super) fn new(body: axum::body::Body, headers: &HeaderMap) -> Answer<Self> {
        let packed = headers.get(header::CONTENT_ENCODING);
        let packed = packed.map_or("identity", |packed| packed.to_str().unwrap_or("?"));
        match packed.trim().to_ascii_lowercase().as_str() {
            "identity" | "" => Ok(Self(file_body::chunks(body).boxed())),
            "gzip" => Ok(Self(unpacked(file_body::chunks(body).boxed()).boxed())),
            other => {
                let message = format!("unsupported Content-Encoding: {other}, supported: gzip");
                Err(Refusal::new(StatusCode::BAD_REQUEST, message))
            }
        }
    }

    pub(super) fn chunks(&mut self) -> &mut BoxStream<'static, Result<Bytes, Error>> {
        &mut self.0
    }

    /// Reads on, for those who listen only after their last byte.
    pub(super) async fn discard(self) {
        let mut left = MOST;
        let rest = self.0.take_while(|chunk| {
            left = left.saturating_sub(chunk.as_ref().map_or(left, Bytes::len));
            std::future::ready(left > 0)
        });
        let rest = rest.for_each(|_| std::future::ready(()));
        let _ = tokio::time::timeout(PATIENCE, rest).await;
    }
}

struct Unpacking {
    packed: BoxStream<'static, Result<Bytes, Error>>,
    piece: Bytes,
    decoder: MultiGzDecoder<Vec<u8>>,
    over: bool,
}

fn unpacked(
    packed: BoxStream<'static, Result<Bytes, Error>>,
) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    let state = Unpacking {
        packed,
        piece: Bytes::new(),
        decoder: MultiGzDecoder::new(Vec::new()),
        over: false,
    };
    futures_util::stream::try_unfold(state, |mut state| async {
        let next = state.next().await?;
        Ok(next.map(|bytes| (bytes, state)))
    })
}

impl Unpacking {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while !self.over {
            if self.piece.is_empty() {
                if let Some(chunk) = self.packed.next().await {
                    self.piece = chunk?;
                } else {
                    self.over = true;
                    self.decoder.try_finish().map_err(|_| damaged())?;
                }
            }
            let piece = self.piece.split_to(self.piece.len().min(PIECE));
            if !self.over {
                self.decoder.write_all(&piece).map_err(|_| damaged())?;
            }
            let bytes = std::mem::take(self.decoder.get_mut());
            if !bytes.is_empty() {
                // Who takes all that is ready must not get all of it at once: it may be a thousand times what came.
                tokio::task::yield_now().await;
                return Ok(Some(bytes.into()));
            }
        }
        Ok(None)
    }
}

fn damaged() -> Error {
    Error::invalid(
        "body",
        "the body is not whole gzip data",
        "send it again, whole",
    )
}
