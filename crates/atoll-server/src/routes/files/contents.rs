//! Reading and writing file contents.

use atoll_model::{Code, WriteOptions};
use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::change::parse_mode;
use super::target::{FileTarget, RunAsQuery};
use super::tree::{EntryView, PathQuery};
use crate::api_types::BinaryBody;
use crate::error::{ApiError, ApiResult};
use crate::extract::Query;
use crate::file_body;

/// Read a file
///
/// Supports `Range`, `If-Range`, `If-None-Match` and `If-Modified-Since`.
#[utoipa::path(get, path = "/sandboxes/{id}/files", params(PathQuery, RunAsQuery),
    responses((status = 200, content_type = "application/octet-stream", body = BinaryBody, headers(("X-File-Size" = String, description = "Size in bytes when the file was opened"))),
        (status = 206, description = "The requested range", content_type = "application/octet-stream", body = BinaryBody),
        (status = 304, description = "Not modified")))]
pub(super) async fn read(
    target: FileTarget,
    Query(query): Query<PathQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    download(target, query.path.as_bytes(), &headers).await
}

/// Responds with a file or the requested range.
pub(super) async fn download(
    target: FileTarget,
    path: &[u8],
    headers: &HeaderMap,
) -> ApiResult<Response> {
    let FileTarget { access, run_as } = target;
    match file_body::open_file(&access, &run_as, path, headers).await {
        Ok(opened) => Ok(opened.respond(access)),
        // The header tells the client the size of the file.
        Err(error) if error.code == Code::RangeNotSatisfiable => {
            let size = error.details.get("size").cloned().unwrap_or_default();
            let response = ApiError(error).into_response();
            Ok(file_body::with_content_range(
                response,
                &format!("*/{size}"),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// Query of a file write.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WriteFileQuery {
    #[param(min_length = 1, example = "notes.txt")]
    path: String,
    /// Permission bits in octal; default: unchanged, 644 for a new file.
    #[param(pattern = "^(0o)?[0-7]{1,4}$")]
    mode: Option<String>,
    /// Write into the existing file. By default the file is replaced atomically at the end.
    #[serde(default)]
    in_place: bool,
}

/// Write a file
///
/// Creates missing parent directories.
#[utoipa::path(put, path = "/sandboxes/{id}/files", params(WriteFileQuery, RunAsQuery),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 200, body = EntryView)))]
pub(super) async fn write(
    target: FileTarget,
    Query(query): Query<WriteFileQuery>,
    body: Body,
) -> ApiResult<Json<EntryView>> {
    let options = WriteOptions {
        mode: query.mode.as_deref().map(parse_mode).transpose()?,
        in_place: query.in_place,
        parents: true,
    };
    upload(target, query.path.as_bytes(), options, body).await
}

/// Writes a file from a request body.
pub(super) async fn upload(
    target: FileTarget,
    path: &[u8],
    options: WriteOptions,
    body: Body,
) -> ApiResult<Json<EntryView>> {
    let writer = target.runtime();
    let writer = writer.write_file(target.id(), &target.run_as, path, options);
    let mut writer = writer.await?;
    file_body::copy_stream(file_body::body_chunks(body), &mut *writer).await?;
    Ok(Json(writer.commit().await?.into()))
}
