//! Upload bodies, decompressed if they are gzip.

use std::io::Write as _;
use std::time::Duration;

use atoll_model::Error;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use flate2::write::MultiGzDecoder;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};

use crate::e2b::error::{E2bError, E2bResult};
use crate::file_body;

/// Compressed bytes per step. Gzip expands at most about 1000 times, so a step's output stays
/// small.
const CHUNK_BYTES: usize = 8 << 10;
/// Limits for reading the rest of a rejected body.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_DISCARD_BYTES: usize = 1 << 30;

/// The unread rest of an upload.
pub(super) struct UploadBody(BoxStream<'static, Result<Bytes, Error>>);

impl UploadBody {
    pub(super) fn new(body: axum::body::Body, headers: &HeaderMap) -> E2bResult<Self> {
        let compressed = headers.get(header::CONTENT_ENCODING);
        let compressed =
            compressed.map_or("identity", |compressed| compressed.to_str().unwrap_or("?"));
        match compressed.trim().to_ascii_lowercase().as_str() {
            "identity" | "" => Ok(Self(file_body::body_chunks(body).boxed())),
            "gzip" => Ok(Self(
                decompress(file_body::body_chunks(body).boxed()).boxed(),
            )),
            other => {
                let message = format!("unsupported Content-Encoding: {other}, supported: gzip");
                Err(E2bError::new(StatusCode::BAD_REQUEST, message))
            }
        }
    }

    pub(super) fn chunks(&mut self) -> &mut BoxStream<'static, Result<Bytes, Error>> {
        &mut self.0
    }

    /// Reads and discards the rest, for clients that read the response only afterwards.
    pub(super) async fn discard(self) {
        let mut left = MAX_DISCARD_BYTES;
        let rest = self.0.take_while(|chunk| {
            left = left.saturating_sub(chunk.as_ref().map_or(left, Bytes::len));
            std::future::ready(left > 0)
        });
        let rest = rest.for_each(|_| std::future::ready(()));
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, rest).await;
    }
}

struct GzipStream {
    compressed: BoxStream<'static, Result<Bytes, Error>>,
    input: Bytes,
    decoder: MultiGzDecoder<Vec<u8>>,
    ended: bool,
}

fn decompress(
    compressed: BoxStream<'static, Result<Bytes, Error>>,
) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    let state = GzipStream {
        compressed,
        input: Bytes::new(),
        decoder: MultiGzDecoder::new(Vec::new()),
        ended: false,
    };
    futures_util::stream::try_unfold(state, |mut state| async {
        let next = state.next().await?;
        Ok(next.map(|bytes| (bytes, state)))
    })
}

impl GzipStream {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while !self.ended {
            if self.input.is_empty() {
                if let Some(chunk) = self.compressed.next().await {
                    self.input = chunk?;
                } else {
                    self.ended = true;
                    self.decoder.try_finish().map_err(|_| invalid_gzip())?;
                }
            }
            let input = self.input.split_to(self.input.len().min(CHUNK_BYTES));
            if !self.ended {
                self.decoder.write_all(&input).map_err(|_| invalid_gzip())?;
            }
            let bytes = std::mem::take(self.decoder.get_mut());
            if !bytes.is_empty() {
                // Yields between chunks: a consumer that never waits would receive all of the
                // expanded data at once.
                tokio::task::yield_now().await;
                return Ok(Some(bytes.into()));
            }
        }
        Ok(None)
    }
}

fn invalid_gzip() -> Error {
    Error::invalid(
        "body",
        "the body is not valid gzip data",
        "send the whole body again",
    )
}
