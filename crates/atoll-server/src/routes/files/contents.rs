//! A file's bytes, in and out.

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
/// With `Range`, a part of it. What somebody has (`If-None-Match`, `If-Modified-Since`) is not sent again.
#[utoipa::path(get, path = "/sandboxes/{id}/files", params(PathQuery, RunAsQuery),
    responses((status = 200, content_type = "application/octet-stream", body = BinaryBody, headers(("X-File-Size" = String, description = "In bytes, when it was opened"))),
        (status = 206, description = "The part that was asked for", content_type = "application/octet-stream", body = BinaryBody),
        (status = 304, description = "It is what somebody has")))]
pub(super) async fn read(
    target: FileTarget,
    Query(query): Query<PathQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    download(target, query.path.as_bytes(), &headers).await
}

/// A file, or the part of it that is asked for.
pub(super) async fn download(
    target: FileTarget,
    path: &[u8],
    headers: &HeaderMap,
) -> ApiResult<Response> {
    let FileTarget { access, run_as } = target;
    match file_body::open_file(&access, &run_as, path, headers).await {
        Ok(opened) => Ok(opened.respond(access)),
        // Tells how long the file is, so that a part of it can be asked for.
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

/// How a file is written.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WriteFileQuery {
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

/// Writes a file from a body.
pub(super) async fn upload(
    target: FileTarget,
    path: &[u8],
    options: WriteOptions,
    body: Body,
) -> ApiResult<Json<EntryView>> {
    let writer = target.runtime();
    let writer = writer.write_file(target.id(), &target.run_as, path, options);
    let mut writer = writer.await?;
    file_body::copy_stream(file_body::body_chunks(body), &mut writer).await?;
    Ok(Json(writer.commit().await?.into()))
}
