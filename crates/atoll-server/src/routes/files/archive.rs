//! Files and directories as tar archives.

use atoll_model::{Code, Error, Unpacked};
use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::target::{As, Files};
use super::tree::Which;
use crate::error::Answer;
use crate::extract::Query;
use crate::file_body::{bytes, chunks, pour};
use crate::api_types::BinaryBody;

/// Read an archive
///
/// A file, or a directory with all that is below, as tar.
#[utoipa::path(get, path = "/sandboxes/{id}/files/archive", params(Which, As),
    responses((status = 200, content_type = "application/x-tar", body = BinaryBody)))]
pub(super) async fn pack(files: Files, Query(which): Query<Which>) -> Answer<Response> {
    let packed = files.runtime();
    let packed = packed.pack(files.id(), &files.who, which.path.as_bytes());
    let reader = packed.await?;
    Ok(bytes("application/x-tar", files.used, reader, None))
}

/// The result of unpacking an archive.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnpackSummary {
    /// Entries that are there now.
    entries: u64,
    /// Of their contents.
    bytes: u64,
    /// Entries that were left out.
    skipped: u64,
    /// The first of them.
    skipped_entries: Vec<SkippedEntry>,
}

/// An entry of an archive that was not unpacked.
#[derive(Debug, Serialize, ToSchema)]
struct SkippedEntry {
    name: String,
    why: String,
}

impl From<Unpacked> for UnpackSummary {
    fn from(unpacked: Unpacked) -> Self {
        let told = unpacked.told.into_iter().map(|(name, why)| SkippedEntry {
            name: String::from_utf8_lossy(&name).into_owned(),
            why,
        });
        Self {
            entries: unpacked.entries,
            bytes: unpacked.bytes,
            skipped: unpacked.left_out,
            skipped_entries: told.collect(),
        }
    }
}

/// Write an archive
///
/// Unpacks tar below a directory, which is made if it is missing.
#[utoipa::path(put, path = "/sandboxes/{id}/files/archive", params(Which, As),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 200, body = UnpackSummary)))]
pub(super) async fn unpack(
    files: Files,
    Query(which): Query<Which>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<UnpackSummary>> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Error::new(
            Code::UnsupportedMediaType,
            "archives are taken without a Content-Encoding",
        )
        .remedy("leave out the header Content-Encoding, and send the tar archive itself")
        .into());
    }
    let unpacking = files.runtime();
    let unpacking = unpacking.unpack(files.id(), &files.who, which.path.as_bytes());
    let mut unpacking = unpacking.await?;
    pour(chunks(body), unpacking.writer()).await?;
    Ok(Json(unpacking.finish().await?.into()))
}
