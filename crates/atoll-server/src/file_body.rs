//! File contents as response and request bodies: ranges, conditional requests and uploads.

mod validators;

use std::pin::pin;

use atoll_core::SandboxAccess;
use atoll_model::runtime::{ByteSink, FileReader};
use atoll_model::{Code, Error, RunAs};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};

use validators::Validators;

/// Read buffer.
const CHUNK_BYTES: usize = 256 << 10;

/// A file to send, whole or a range of it, or 304.
#[derive(Debug)]
pub(crate) enum FileResponse {
    Content {
        reader: Box<dyn FileReader>,
        /// First and last byte of the range.
        part: Option<(u64, u64)>,
        size: u64,
    },
    NotModified(Validators),
}

/// Opens a file, or the requested range, and evaluates conditional headers.
pub(crate) async fn open_file(
    access: &SandboxAccess,
    run_as: &RunAs,
    path: &[u8],
    headers: &HeaderMap,
) -> Result<FileResponse, Error> {
    let (runtime, id) = (access.runtime(), access.id());
    let mut range = parse_range(headers);
    if range.is_some() || validators::has_conditions(headers) {
        let found = runtime.stat(id, run_as, path, true).await?;
        let validators = Validators::from_entry(&found);
        if let Some(validators) = validators
            .clone()
            .filter(|found| found.is_not_modified(headers))
        {
            return Ok(FileResponse::NotModified(validators));
        }
        range = range.filter(|_| validators::if_range_matches(validators.as_ref(), headers));
        if let Some(range) = range {
            let (first, last) = range.within(found.size)?;
            let reader = runtime.read_range(id, run_as, path, first, last - first + 1);
            let reader = reader.await?;
            // The file was replaced between `stat` and `open`: send it whole.
            if validators::if_range_matches(
                Validators::from_entry(reader.entry()).as_ref(),
                headers,
            ) {
                return Ok(FileResponse::Content {
                    reader,
                    part: Some((first, last)),
                    size: found.size,
                });
            }
        }
    }
    let reader = runtime.read_file(id, run_as, path).await?;
    let size = reader.entry().size;
    Ok(FileResponse::Content {
        reader,
        part: None,
        size,
    })
}

impl FileResponse {
    /// Builds the response. The access is held until the last byte is sent.
    pub(crate) fn respond(self, access: SandboxAccess) -> Response {
        const CONTENT_TYPE: &str = "application/octet-stream";
        let (reader, part, size) = match self {
            Self::Content { reader, part, size } => (reader, part, size),
            Self::NotModified(validators) => {
                let mut response = StatusCode::NOT_MODIFIED.into_response();
                validators.write_headers(response.headers_mut());
                return response;
            }
        };
        let validators = Validators::from_entry(reader.entry());
        let mut response = if let Some((first, last)) = part {
            let mut response =
                download_response(CONTENT_TYPE, access, reader, Some(last - first + 1));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            with_content_range(response, &format!("{first}-{last}/{size}"))
        } else {
            // Size 0 may be a generated file (`/proc`), whose length is unknown.
            let length = (size > 0).then_some(size);
            let mut response = download_response(CONTENT_TYPE, access, reader, length);
            response.headers_mut().insert("x-file-size", size.into());
            response
        };
        if let Some(validators) = validators {
            validators.write_headers(response.headers_mut());
        }
        response
    }
}

/// Adds a `Content-Range` header.
pub(crate) fn with_content_range(mut response: Response, place: &str) -> Response {
    if let Ok(place) = format!("bytes {place}").parse() {
        response.headers_mut().insert(header::CONTENT_RANGE, place);
    }
    response
}

/// Response with the bytes of a file, which browsers download and never render. With a length,
/// exactly that many bytes are sent: appended data is ignored, and truncation aborts the response.
pub(crate) fn download_response(
    kind: &'static str,
    access: SandboxAccess,
    reader: Box<dyn FileReader>,
    length: Option<u64>,
) -> Response {
    let state = (access, reader, BytesMut::new(), length);
    let stream = futures_util::stream::unfold(state, |state| async move {
        let (access, mut reader, mut buffer, left) = state;
        let max = left.map_or(CHUNK_BYTES, |left| {
            CHUNK_BYTES.min(usize::try_from(left).unwrap_or(CHUNK_BYTES))
        });
        if max == 0 {
            return None;
        }
        // The headers are sent: an error can only abort the response.
        let failed = |reason: String| Err(std::io::Error::other(reason));
        let (read, left) = match (reader.read(&mut buffer, max).await, left) {
            (Ok(0), None) => return None,
            (Ok(0), Some(_)) => (failed("the file was truncated".into()), left),
            (Ok(count), left) => {
                let left = left.map(|left| left.saturating_sub(count as u64));
                (Ok(buffer.split().freeze()), left)
            }
            (Err(error), left) => (failed(error.message), left),
        };
        Some((read, (access, reader, buffer, left)))
    });
    binary_response(kind, Body::from_stream(stream), length)
}

fn binary_response(kind: &'static str, body: Body, length: Option<u64>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::ACCEPT_RANGES, "bytes"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::CONTENT_SECURITY_POLICY, "sandbox"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let mut response = (headers, body).into_response();
    if let Some(length) = length {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length.into());
    }
    response
}

/// Byte range of a `Range` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteRange {
    /// From an offset, optionally up to an inclusive end.
    From(u64, Option<u64>),
    /// The last bytes of the file.
    Last(u64),
}

/// Parses `Range`. Unsupported forms, such as multiple ranges, are ignored (RFC 9110).
fn parse_range(headers: &HeaderMap) -> Option<ByteRange> {
    let text = headers.get(header::RANGE)?.to_str().ok()?;
    let (first, last) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
    match (first, last) {
        ("", last) => Some(ByteRange::Last(last.parse().ok()?)),
        (first, "") => Some(ByteRange::From(first.parse().ok()?, None)),
        (first, last) => {
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(ByteRange::From(first, Some(last)))
        }
    }
}

impl ByteRange {
    /// First and last byte of the range in a file of this size.
    fn within(self, size: u64) -> Result<(u64, u64), Error> {
        let outside = || {
            Error::new(
                Code::RangeNotSatisfiable,
                format!("the requested range is outside the file, which has {size} bytes"),
            )
            .remedy("request a range within the file")
            .detail("size", size.to_string())
        };
        let end = size.checked_sub(1).ok_or_else(outside)?;
        match self {
            Self::From(first, _) if first > end => Err(outside()),
            Self::From(first, last) => Ok((first, last.map_or(end, |last| last.min(end)))),
            Self::Last(0) => Err(outside()),
            Self::Last(count) => Ok((size.saturating_sub(count), end)),
        }
    }
}

/// Stream of a request body's chunks.
pub(crate) fn body_chunks(body: Body) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
    body.into_data_stream().map_err(|_| body_incomplete())
}

/// Writes a stream to a file or an archive. If the stream fails, a file that would be replaced stays unchanged.
pub(crate) async fn copy_stream(
    stream: impl Stream<Item = Result<Bytes, Error>>,
    sink: &mut dyn ByteSink,
) -> Result<(), Error> {
    let mut stream = pin!(stream);
    while let Some(chunk) = stream.next().await {
        sink.write(&chunk?).await?;
    }
    Ok(())
}

fn body_incomplete() -> Error {
    Error::invalid(
        "body",
        "the body is incomplete",
        "send the whole body again",
    )
}
