//! Files and directories as tar archives.

use atoll_model::{Code, Error, UnpackSummary};
use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::target::{FileTarget, RunAsQuery};
use super::tree::PathQuery;
use crate::api_types::BinaryBody;
use crate::error::ApiResult;
use crate::extract::Query;
use crate::file_body::{body_chunks, copy_stream, download_response};

/// Read an archive
///
/// Returns a file, or a directory with its contents, as tar.
#[utoipa::path(get, path = "/sandboxes/{id}/files/archive", params(PathQuery, RunAsQuery),
    responses((status = 200, content_type = "application/x-tar", body = BinaryBody)))]
pub(super) async fn pack(
    target: FileTarget,
    Query(query): Query<PathQuery>,
) -> ApiResult<Response> {
    let packed = target.runtime();
    let packed = packed.pack(target.id(), &target.run_as, query.path.as_bytes());
    let reader = packed.await?;
    Ok(download_response(
        "application/x-tar",
        target.access,
        reader,
        None,
    ))
}

/// The result of unpacking an archive.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = UnpackSummary)]
pub(super) struct UnpackSummaryView {
    /// Entries that were unpacked.
    entries: u64,
    /// Size of their contents.
    bytes: u64,
    /// Entries that were skipped.
    skipped: u64,
    /// The first skipped entries.
    skipped_entries: Vec<SkippedEntry>,
}

/// An entry of an archive that was not unpacked.
#[derive(Debug, Serialize, ToSchema)]
struct SkippedEntry {
    name: String,
    why: String,
}

impl From<UnpackSummary> for UnpackSummaryView {
    fn from(unpacked: UnpackSummary) -> Self {
        let skipped = unpacked
            .skipped_entries
            .into_iter()
            .map(|(name, why)| SkippedEntry {
                name: String::from_utf8_lossy(&name).into_owned(),
                why,
            });
        Self {
            entries: unpacked.entries,
            bytes: unpacked.bytes,
            skipped: unpacked.skipped,
            skipped_entries: skipped.collect(),
        }
    }
}

/// Write an archive
///
/// Unpacks a tar archive into a directory, which is created if it does not exist.
#[utoipa::path(put, path = "/sandboxes/{id}/files/archive", params(PathQuery, RunAsQuery),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 200, body = UnpackSummaryView)))]
pub(super) async fn unpack(
    target: FileTarget,
    Query(query): Query<PathQuery>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<UnpackSummaryView>> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Error::new(
            Code::UnsupportedMediaType,
            "archives must not have a Content-Encoding",
        )
        .remedy("remove the header Content-Encoding and send the plain tar archive")
        .into());
    }
    let unpacking = target.runtime();
    let unpacking = unpacking.unpack(target.id(), &target.run_as, query.path.as_bytes());
    let mut unpacking = unpacking.await?;
    copy_stream(body_chunks(body), &mut *unpacking).await?;
    Ok(Json(unpacking.finish().await?.into()))
}
