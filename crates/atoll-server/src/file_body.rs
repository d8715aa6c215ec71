//! A file's bytes on their way through us, in and out.

mod validators;

use std::pin::pin;

use atoll_core::Use;
use atoll_model::{Code, Error, RunAs};
use atoll_worker::{FileReader, FileWriter};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, BytesMut};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};

use validators::Validators;

/// How much is read at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// A file that is being read, or the part of it that is asked for; or one that its reader has.
#[derive(Debug)]
pub(crate) enum FileResponse {
    Content {
        reader: FileReader,
        /// First and last byte of a part.
        part: Option<(u64, u64)>,
        size: u64,
    },
    NotModified(Validators),
}

/// Opens a file, or the part of it that is asked for, unless whoever asks has it.
pub(crate) async fn open_file(
    access: &Use,
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
            // One that took its place since we looked is no part of what somebody has.
            if validators::if_range_matches(Validators::from_entry(&reader.entry).as_ref(), headers)
            {
                return Ok(FileResponse::Content {
                    reader,
                    part: Some((first, last)),
                    size: found.size,
                });
            }
        }
    }
    let reader = runtime.read_file(id, run_as, path).await?;
    let size = reader.entry.size;
    Ok(FileResponse::Content {
        reader,
        part: None,
        size,
    })
}

impl FileResponse {
    /// Its bytes; the sandbox is in use until the last.
    pub(crate) fn respond(self, access: Use) -> Response {
        const CONTENT_TYPE: &str = "application/octet-stream";
        let (reader, part, size) = match self {
            Self::Content { reader, part, size } => (reader, part, size),
            Self::NotModified(validators) => {
                let mut response = StatusCode::NOT_MODIFIED.into_response();
                validators.write_headers(response.headers_mut());
                return response;
            }
        };
        let validators = Validators::from_entry(&reader.entry);
        let mut response = if let Some((first, last)) = part {
            let mut response =
                download_response(CONTENT_TYPE, access, reader, Some(last - first + 1));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            with_content_range(response, &format!("{first}-{last}/{size}"))
        } else {
            // What the kernel makes up as it is read has no length.
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

/// Says where in the file an answer's bytes are.
pub(crate) fn with_content_range(mut response: Response, place: &str) -> Response {
    if let Ok(place) = format!("bytes {place}").parse() {
        response.headers_mut().insert(header::CONTENT_RANGE, place);
    }
    response
}

/// Bytes of a sandbox on their way out: a browser keeps them and shows nothing of them. With a length they are just so
/// many: what a file grows by meanwhile is left out, and one that shrinks breaks the answer off.
pub(crate) fn download_response(
    kind: &'static str,
    access: Use,
    reader: FileReader,
    length: Option<u64>,
) -> Response {
    let state = (access, reader, BytesMut::new(), length);
    let stream = futures_util::stream::unfold(state, |state| async move {
        let (access, mut reader, mut buffer, left) = state;
        let most = left.map_or(CHUNK_BYTES, |left| {
            CHUNK_BYTES.min(usize::try_from(left).unwrap_or(CHUNK_BYTES))
        });
        if most == 0 {
            return None;
        }
        // The same memory again, once it was sent.
        buffer.reserve(most);
        // The answer has begun: all that is left is to break it off.
        let failed = |why: String| Err(std::io::Error::other(why));
        let (read, left) = match (reader.read((&mut buffer).limit(most)).await, left) {
            (Ok(0), None) => return None,
            (Ok(0), Some(_)) => (failed("the file became shorter".into()), left),
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

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteRange {
    /// From a byte on, perhaps up to another, which belongs to it.
    From(u64, Option<u64>),
    /// The last so many bytes.
    Last(u64),
}

/// Which part is asked for. What we do not understand (several parts) is no wish for a part, as RFC 9110 has it.
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
    /// Its first and its last byte in a file of this size.
    fn within(self, size: u64) -> Result<(u64, u64), Error> {
        let outside = || {
            Error::new(
                Code::RangeNotSatisfiable,
                format!("the file has {size} bytes, and none of those that were asked for"),
            )
            .remedy("ask for a part that is there")
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

/// A body's bytes as they come.
pub(crate) fn body_chunks(body: Body) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
    body.into_data_stream().map_err(|_| body_incomplete())
}

/// Sends all that comes into the sandbox. Broken off: a file that is replaced stays as it was.
pub(crate) async fn copy_stream(
    stream: impl Stream<Item = Result<Bytes, Error>>,
    writer: &mut FileWriter,
) -> Result<(), Error> {
    let mut stream = pin!(stream);
    while let Some(chunk) = stream.next().await {
        writer.write(&chunk?).await?;
    }
    Ok(())
}

fn body_incomplete() -> Error {
    Error::invalid("body", "the body broke off", "send it again, whole")
}
