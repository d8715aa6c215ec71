//! What is there: one entry, or all below a directory; and taking it away.

use atoll_model::{Entry, EntryKind};
use axum::Json;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::place::Files;
use crate::answer::Answer;
use crate::body::{Query, checked_limit};

/// How many entries a list has at most.
const ENTRIES: u32 = 10_000;

/// Which one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    pub(super) path: String,
}

/// What a path leads to, on the wire.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryView {
    name: String,
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    is_dir: bool,
    size: u64,
    mode: String,
    uid: u32,
    gid: u32,
    modified_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<Entry> for EntryView {
    fn from(entry: Entry) -> Self {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let seconds = jiff::Timestamp::from_nanosecond(i128::from(entry.modified));
        Self {
            name: path
                .rsplit('/')
                .find(|part| !part.is_empty())
                .unwrap_or("/")
                .to_owned(),
            kind: match entry.kind {
                EntryKind::File => "file",
                EntryKind::Directory => "directory",
                EntryKind::Link => "link",
                EntryKind::Other => "other",
            },
            is_dir: entry.kind == EntryKind::Directory,
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

pub(super) async fn stat(files: Files, Query(which): Query<Which>) -> Answer<Json<EntryView>> {
    let path = which.path.as_bytes();
    let about = files.runtime();
    let about = about.stat(files.id(), &files.who, path, false).await?;
    Ok(Json(about.into()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    path: String,
    depth: Option<u32>,
    limit: Option<u32>,
}

pub(super) async fn list(files: Files, Query(asked): Query<Listed>) -> Answer<Response> {
    let limit = checked_limit(asked.limit, ENTRIES, ENTRIES)?;
    let depth = asked.depth.unwrap_or(1);
    let path = asked.path.as_bytes();
    let runtime = files.runtime();
    let listed = runtime.list_files(files.id(), &files.who, path, depth, limit);
    let (entries, more) = listed.await?;
    let entries: Vec<EntryView> = entries.into_iter().map(EntryView::from).collect();
    let mut response = Json(entries).into_response();
    if more {
        let value = HeaderValue::from_static("true");
        response.headers_mut().insert("x-truncated", value);
    }
    Ok(response)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Removed {
    path: String,
    recursive: Option<bool>,
}

pub(super) async fn remove(files: Files, Query(asked): Query<Removed>) -> Answer<StatusCode> {
    let path = asked.path.as_bytes();
    let recursive = asked.recursive.unwrap_or(true);
    let runtime = files.runtime();
    let removed = runtime.remove(files.id(), &files.who, path, recursive);
    removed.await?;
    Ok(StatusCode::NO_CONTENT)
}
