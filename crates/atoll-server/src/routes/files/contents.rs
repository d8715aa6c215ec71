//! A file's bytes, in and out.

use atoll_core::Use;
use atoll_model::{Code, Error, WriteOptions};
use atoll_worker::{Reader, Writer};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use serde::Deserialize;
use utoipa::IntoParams;

use super::change::octal;
use super::place::{As, Files};
use super::tree::{EntryView, Which};
use crate::answer::{Answer, Failure};
use crate::body::Query;
use crate::views::Raw;

/// How much is read at a time.
const CHUNK: usize = 256 << 10;

/// Read a file
///
/// With `Range`, a part of it.
#[utoipa::path(get, path = "/sandboxes/{id}/files", params(Which, As),
    responses((status = 200, content_type = "application/octet-stream", body = Raw, headers(("X-File-Size" = String, description = "In bytes, when it was opened"))),
        (status = 206, description = "The part that was asked for", content_type = "application/octet-stream", body = Raw)))]
pub(super) async fn read(
    files: Files,
    Query(which): Query<Which>,
    headers: HeaderMap,
) -> Answer<Response> {
    download(files, which.path.as_bytes(), &headers).await
}

/// A file, or the part of it that is asked for.
pub(super) async fn download(files: Files, path: &[u8], headers: &HeaderMap) -> Answer<Response> {
    let (runtime, id, who) = (files.runtime(), files.id(), &files.who);
    let Some(wanted) = range(headers) else {
        let reader = runtime.read_file(id, who, path).await?;
        let size = reader.entry.size;
        let mut response = bytes("application/octet-stream", files.used, reader);
        // A hint only: a file that grows or shrinks meanwhile is told by the end of the body.
        response.headers_mut().insert("x-file-size", size.into());
        return Ok(response);
    };
    let size = runtime.stat(id, who, path, true).await?.size;
    let (first, last) = match wanted.within(size) {
        Ok(part) => part,
        Err(error) => return Ok(placed(Failure(error).into_response(), &format!("*/{size}"))),
    };
    let part = runtime.read_part(id, who, path, first, last - first + 1);
    let reader = part.await?;
    let mut response = bytes("application/octet-stream", files.used, reader);
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    Ok(placed(response, &format!("{first}-{last}/{size}")))
}

/// Says where in the file an answer's bytes are.
fn placed(mut response: Response, place: &str) -> Response {
    if let Ok(place) = format!("bytes {place}").parse() {
        response.headers_mut().insert(header::CONTENT_RANGE, place);
    }
    response
}

/// Bytes of a sandbox on their way out: a browser keeps them and shows nothing of them.
pub(super) fn bytes(kind: &'static str, used: Use, reader: Reader) -> Response {
    let stream = futures_util::stream::unfold((used, reader), |(used, mut reader)| async {
        let mut buffer = vec![0; CHUNK];
        match reader.read(&mut buffer).await {
            Ok(0) => None,
            Ok(count) => {
                buffer.truncate(count);
                Some((Ok(Bytes::from(buffer)), (used, reader)))
            }
            // The answer has begun: all that is left is to break it off.
            Err(error) => Some((Err(std::io::Error::other(error.message)), (used, reader))),
        }
    });
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::ACCEPT_RANGES, "bytes"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::CONTENT_SECURITY_POLICY, "sandbox"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, Body::from_stream(stream)).into_response()
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// From a byte on, perhaps up to another, which belongs to it.
    From(u64, Option<u64>),
    /// The last so many bytes.
    Last(u64),
}

/// Which part is asked for. What we do not understand (several parts, or only if nothing has changed) is no wish for a
/// part, as RFC 9110 has it.
fn range(headers: &HeaderMap) -> Option<Part> {
    if headers.contains_key(header::IF_RANGE) {
        return None;
    }
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

/// How a file is written.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Written {
    #[param(min_length = 1, example = "notes.txt")]
    path: String,
    /// Permission bits in octal; as they were, or 644, if nothing is said.
    #[param(pattern = "^(0o)?[0-7]{1,4}$")]
    mode: Option<String>,
    /// Write into the file that is there, instead of replacing it at the end, at once.
    #[serde(default)]
    in_place: bool,
}

/// Write a file
///
/// Missing directories above it are made.
#[utoipa::path(put, path = "/sandboxes/{id}/files", params(Written, As),
    request_body(content_type = "application/octet-stream", content = Raw), responses((status = 200, body = EntryView)))]
pub(super) async fn write(
    files: Files,
    Query(which): Query<Written>,
    body: Body,
) -> Answer<Json<EntryView>> {
    let options = WriteOptions {
        mode: which.mode.as_deref().map(octal).transpose()?,
        in_place: which.in_place,
        parents: true,
    };
    upload(files, which.path.as_bytes(), options, body).await
}

/// Writes a file from a body.
pub(super) async fn upload(
    files: Files,
    path: &[u8],
    options: WriteOptions,
    body: Body,
) -> Answer<Json<EntryView>> {
    let writer = files.runtime();
    let writer = writer.write_file(files.id(), &files.who, path, options);
    let mut writer = writer.await?;
    pour(body, &mut writer).await?;
    Ok(Json(writer.commit().await?.into()))
}

/// Sends a whole body into the sandbox.
pub(super) async fn pour(body: Body, writer: &mut Writer) -> Result<(), Error> {
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        // Broken off: a file that is replaced stays as it was.
        let chunk = chunk.map_err(|_| broken_off())?;
        writer.write(&chunk).await?;
    }
    Ok(())
}

fn broken_off() -> Error {
    Error::invalid("body", "the body broke off", "send it again, whole")
}
