//! File metadata, directory listings and removal.

use atoll_model::{FileEntry, FileKind};
use axum::Json;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::target::{FileTarget, RunAsQuery};
use crate::api_types::Time;
use crate::error::ApiResult;
use crate::extract::{Query, checked_limit};

/// Maximum number of entries in a listing.
const MAX_ENTRIES: u32 = 10_000;

/// The path of a request.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PathQuery {
    #[param(min_length = 1, example = "/etc/hostname")]
    pub(super) path: String,
}

/// Metadata of a file.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FileInfo)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryView {
    name: String,
    path: String,
    /// `file`, `directory`, `link` or `other`.
    #[serde(rename = "type")]
    kind: &'static str,
    is_dir: bool,
    /// In bytes.
    size: u64,
    /// Permission bits in octal.
    mode: String,
    uid: u32,
    gid: u32,
    #[schema(value_type = Time)]
    modified_at: String,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<FileEntry> for EntryView {
    fn from(entry: FileEntry) -> Self {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let seconds = jiff::Timestamp::from_nanosecond(i128::from(entry.modified));
        Self {
            name: path
                .rsplit('/')
                .find(|part| !part.is_empty())
                .unwrap_or("/")
                .to_owned(),
            kind: match entry.kind {
                FileKind::File => "file",
                FileKind::Directory => "directory",
                FileKind::Link => "link",
                FileKind::Other => "other",
            },
            is_dir: entry.kind == FileKind::Directory,
            size: entry.size,
            mode: format!("{:04o}", entry.mode & 0o7777),
            uid: entry.uid,
            gid: entry.gid,
            modified_at: seconds.map(|time| format!("{time:.6}")).unwrap_or_default(),
            target: entry
                .link
                .map(|link| String::from_utf8_lossy(&link).into_owned()),
            path,
        }
    }
}

/// Get file metadata
///
/// Does not follow symbolic links.
#[utoipa::path(get, path = "/sandboxes/{id}/files/stat", params(PathQuery, RunAsQuery), responses((status = 200, body = EntryView)))]
pub(super) async fn stat(
    target: FileTarget,
    Query(query): Query<PathQuery>,
) -> ApiResult<Json<EntryView>> {
    let path = query.path.as_bytes();
    let about = target.runtime();
    let about = about.stat(target.id(), &target.run_as, path, false).await?;
    Ok(Json(about.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListFilesQuery {
    #[param(min_length = 1, example = "/home/user")]
    path: String,
    /// Levels of subdirectories.
    #[param(maximum = 4_294_967_295_i64, default = 1)]
    depth: Option<u32>,
    #[param(minimum = 1, maximum = 10000, default = 10000)]
    limit: Option<u32>,
}

/// List a directory
#[utoipa::path(get, path = "/sandboxes/{id}/files/list", params(ListFilesQuery, RunAsQuery),
    responses((status = 200, body = [EntryView], headers(("X-Truncated" = String, description = "Set if there are more entries than `limit`")))))]
pub(super) async fn list(
    target: FileTarget,
    Query(query): Query<ListFilesQuery>,
) -> ApiResult<Response> {
    let limit = checked_limit(query.limit, MAX_ENTRIES, MAX_ENTRIES)?;
    let depth = query.depth.unwrap_or(1);
    let path = query.path.as_bytes();
    let runtime = target.runtime();
    let listed = runtime.list_files(target.id(), &target.run_as, path, depth, limit);
    let (entries, more) = listed.await?;
    let entries: Vec<EntryView> = entries.into_iter().map(EntryView::from).collect();
    let mut response = Json(entries).into_response();
    if more {
        let value = HeaderValue::from_static("true");
        response.headers_mut().insert("x-truncated", value);
    }
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveFileQuery {
    #[param(min_length = 1, example = "old")]
    path: String,
    /// Remove directories with their contents.
    #[param(default = true)]
    recursive: Option<bool>,
}

/// Remove
///
/// Removes a file, or a directory with its contents.
#[utoipa::path(delete, path = "/sandboxes/{id}/files", params(RemoveFileQuery, RunAsQuery), responses((status = 204)))]
pub(super) async fn remove(
    target: FileTarget,
    Query(query): Query<RemoveFileQuery>,
) -> ApiResult<StatusCode> {
    let path = query.path.as_bytes();
    let recursive = query.recursive.unwrap_or(true);
    let runtime = target.runtime();
    let removed = runtime.remove(target.id(), &target.run_as, path, recursive);
    removed.await?;
    Ok(StatusCode::NO_CONTENT)
}
