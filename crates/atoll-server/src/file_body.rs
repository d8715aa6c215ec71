//! A file's bytes on their way through us, in and out.

mod validators;

use std::pin::pin;

use atoll_core::Use;
use atoll_model::{Caller, Code, Error};
use atoll_worker::{FileReader, FileWriter};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, BytesMut};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};

use validators::Version;

/// How much is read at a time.
const CHUNK: usize = 256 << 10;

/// A file that is being read, or the part of it that is asked for; or one that its reader has.
#[derive(Debug)]
pub(crate) enum Opened {
    Read {
        reader: FileReader,
        /// First and last byte of a part.
        part: Option<(u64, u64)>,
        size: u64,
    },
    Had(Version),
}

/// Opens a file, or the part of it that is asked for, unless whoever asks has it.
pub(crate) async fn open(
    used: &Use,
    who: &Caller,
    path: &[u8],
    headers: &HeaderMap,
) -> Result<Opened, Error> {
    let (runtime, id) = (used.runtime(), used.id());
    let mut wanted = range(headers);
    if wanted.is_some() || validators::matters(headers) {
        let found = runtime.stat(id, who, path, true).await?;
        let version = Version::of(&found);
        if let Some(version) = version.clone().filter(|found| found.is_had(headers)) {
            return Ok(Opened::Had(version));
        }
        wanted = wanted.filter(|_| validators::continues(version.as_ref(), headers));
        if let Some(wanted) = wanted {
            let (first, last) = wanted.within(found.size)?;
            let reader = runtime.read_range(id, who, path, first, last - first + 1);
            let reader = reader.await?;
            // One that took its place since we looked is no part of what somebody has.
            if validators::continues(Version::of(&reader.entry).as_ref(), headers) {
                return Ok(Opened::Read {
                    reader,
                    part: Some((first, last)),
                    size: found.size,
                });
            }
        }
    }
    let reader = runtime.read_file(id, who, path).await?;
    let size = reader.entry.size;
    Ok(Opened::Read {
        reader,
        part: None,
        size,
    })
}

impl Opened {
    /// Its bytes; the sandbox is in use until the last.
    pub(crate) fn answer(self, used: Use) -> Response {
        const KIND: &str = "application/octet-stream";
        let (reader, part, size) = match self {
            Self::Read { reader, part, size } => (reader, part, size),
            Self::Had(version) => {
                let mut response = StatusCode::NOT_MODIFIED.into_response();
                version.sign(response.headers_mut());
                return response;
            }
        };
        let version = Version::of(&reader.entry);
        let mut response = if let Some((first, last)) = part {
            let mut response = bytes(KIND, used, reader, Some(last - first + 1));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            placed(response, &format!("{first}-{last}/{size}"))
        } else {
            // What the kernel makes up as it is read has no length.
            let length = (size > 0).then_some(size);
            let mut response = bytes(KIND, used, reader, length);
            response.headers_mut().insert("x-file-size", size.into());
            response
        };
        if let Some(version) = version {
            version.sign(response.headers_mut());
        }
        response
    }
}

/// Says where in the file an answer's bytes are.
pub(crate) fn placed(mut response: Response, place: &str) -> Response {
    if let Ok(place) = format!("bytes {place}").parse() {
        response.headers_mut().insert(header::CONTENT_RANGE, place);
    }
    response
}

/// Bytes of a sandbox on their way out: a browser keeps them and shows nothing of them. With a length they are just so
/// many: what a file grows by meanwhile is left out, and one that shrinks breaks the answer off.
pub(crate) fn bytes(
    kind: &'static str,
    used: Use,
    reader: FileReader,
    length: Option<u64>,
) -> Response {
    let state = (used, reader, BytesMut::new(), length);
    let stream = futures_util::stream::unfold(state, |state| async move {
        let (used, mut reader, mut buffer, left) = state;
        let most = left.map_or(CHUNK, |left| {
            CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))
        });
        if most == 0 {
            return None;
        }
        // The same memory again, once it was sent.
        buffer.reserve(most);
        // The answer has begun: all that is left is to break it off.
        let broken = |why: String| Err(std::io::Error::other(why));
        let (read, left) = match (reader.read((&mut buffer).limit(most)).await, left) {
            (Ok(0), None) => return None,
            (Ok(0), Some(_)) => (broken("the file became shorter".into()), left),
            (Ok(count), left) => {
                let left = left.map(|left| left.saturating_sub(count as u64));
                (Ok(buffer.split().freeze()), left)
            }
            (Err(error), left) => (broken(error.message), left),
        };
        Some((read, (used, reader, buffer, left)))
    });
    answer(kind, Body::from_stream(stream), length)
}

fn answer(kind: &'static str, body: Body, length: Option<u64>) -> Response {
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
enum Part {
    /// From a byte on, perhaps up to another, which belongs to it.
    From(u64, Option<u64>),
    /// The last so many bytes.
    Last(u64),
}

/// Which part is asked for. What we do not understand (several parts) is no wish for a part, as RFC 9110 has it.
fn range(headers: &HeaderMap) -> Option<Part> {
    let text = headers.get(header::RANGE)?.to_str().ok()?;
    let (first, last) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
    match (first, last) {
        ("", last) => Some(Part::Last(last.parse().ok()?)),
        (first, "") => Some(Part::From(first.parse().ok()?, None)),
        (first, last) => {
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(Part::From(first, Some(last)))
        }
    }
}

impl Part {
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
pub(crate) fn chunks(body: Body) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
    body.into_data_stream().map_err(|_| broken_off())
}

/// Sends all that comes into the sandbox. Broken off: a file that is replaced stays as it was.
pub(crate) async fn pour(
    chunks: impl Stream<Item = Result<Bytes, Error>>,
    writer: &mut FileWriter,
) -> Result<(), Error> {
    let mut chunks = pin!(chunks);
    while let Some(chunk) = chunks.next().await {
        writer.write(&chunk?).await?;
    }
    Ok(())
}

fn broken_off() -> Error {
    Error::invalid("body", "the body broke off", "send it again, whole")
}
