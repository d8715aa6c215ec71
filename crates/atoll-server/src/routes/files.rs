//! Files, as raw bytes; what can be said about them, as JSON.

use atoll_model::{Authority, Caller as FileCaller, Entry, EntryKind, Error, Scope, WriteOptions};
use axum::body::{Body as RawBody, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use crate::App;
use crate::answer::Answer;
use crate::body::{Body, Query};
use crate::guard::Caller;

/// How much is read at a time.
const CHUNK: usize = 256 << 10;
/// How many entries a list has at most.
const ENTRIES: u32 = 10_000;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sandboxes/{id}/files", get(read).put(write).delete(remove))
        .route("/sandboxes/{id}/files/list", get(list))
        .route("/sandboxes/{id}/files/stat", get(stat))
        .route("/sandboxes/{id}/files/mkdir", post(make_directory))
        .route("/sandboxes/{id}/files/rename", post(rename))
        .route("/sandboxes/{id}/files/move", post(move_into))
        .route("/sandboxes/{id}/files/copy", post(copy))
        .route("/sandboxes/{id}/files/chmod", post(chmod))
        .route("/sandboxes/{id}/files/chown", post(chown))
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rights {
    #[default]
    User,
    Root,
}

/// Which file, and for whom.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Which {
    path: String,
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
    mode: Option<String>,
    #[serde(default)]
    in_place: bool,
    depth: Option<u32>,
    limit: Option<u32>,
    #[serde(default)]
    recursive: Option<bool>,
}

fn file_caller(user: Option<String>, authority: Rights) -> FileCaller {
    FileCaller {
        user,
        authority: match authority {
            Rights::User => Authority::User,
            Rights::Root => Authority::Root,
        },
    }
}

impl Which {
    fn caller(&self) -> FileCaller {
        file_caller(self.user.clone(), self.authority)
    }

    fn mode(&self) -> Result<Option<u32>, Error> {
        self.mode.as_deref().map(octal).transpose()
    }
}

/// Permission bits as people write them.
fn octal(text: &str) -> Result<u32, Error> {
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8);
    mode.ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        let message = format!("{text:?} is not a mode");
        Error::invalid("mode", message, "write it in octal, like 644")
    })
}

/// What a path leads to, on the wire.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EntryView {
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

async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Answer<Response> {
    let used = app.core.enter(&caller, &id, Scope::Read).await?;
    let path = which.path.as_bytes();
    let about = used
        .runtime()
        .stat(used.id(), &which.caller(), path, true)
        .await?;
    let reader = used
        .runtime()
        .read_file(used.id(), &which.caller(), path)
        .await?;
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
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::CONTENT_SECURITY_POLICY, "sandbox"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let mut response = (headers, RawBody::from_stream(stream)).into_response();
    // A hint only: a file that grows or shrinks meanwhile is told by the end of the body.
    if let Ok(size) = about.size.to_string().parse() {
        response.headers_mut().insert("x-file-size", size);
    }
    Ok(response)
}

async fn write(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(which): Query<Which>,
    body: RawBody,
) -> Answer<Json<EntryView>> {
    let options = WriteOptions {
        mode: which.mode()?,
        in_place: which.in_place,
        parents: true,
    };
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let path = which.path.as_bytes();
    let who = which.caller();
    let writer = used.runtime().write_file(used.id(), &who, path, options);
    let mut writer = writer.await?;
    let mut stream = body.into_data_stream();
    while let Some(chunk) = stream.next().await {
        // Broken off: a file that is replaced stays as it was.
        let chunk = chunk
            .map_err(|_| Error::invalid("body", "the body broke off", "send it again, whole"))?;
        writer.write(&chunk).await?;
    }
    Ok(Json(writer.commit().await?.into()))
}

async fn remove(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Answer<StatusCode> {
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let path = which.path.as_bytes();
    let recursive = which.recursive.unwrap_or(true);
    let who = which.caller();
    let removed = used.runtime().remove(used.id(), &who, path, recursive);
    removed.await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Answer<Response> {
    let limit = which.limit.unwrap_or(ENTRIES);
    if !(1..=ENTRIES).contains(&limit) {
        let message = format!("limit is {limit}");
        return Err(Error::invalid("limit", message, "give 1 to 10000").into());
    }
    let used = app.core.enter(&caller, &id, Scope::Read).await?;
    let depth = which.depth.unwrap_or(1);
    let path = which.path.as_bytes();
    let who = which.caller();
    let listed = used
        .runtime()
        .list_files(used.id(), &who, path, depth, limit);
    let (entries, more) = listed.await?;
    let entries: Vec<EntryView> = entries.into_iter().map(EntryView::from).collect();
    let mut response = Json(entries).into_response();
    if more {
        let value = axum::http::HeaderValue::from_static("true");
        response.headers_mut().insert("x-truncated", value);
    }
    Ok(response)
}

async fn stat(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(which): Query<Which>,
) -> Answer<Json<EntryView>> {
    let used = app.core.enter(&caller, &id, Scope::Read).await?;
    let path = which.path.as_bytes();
    let about = used
        .runtime()
        .stat(used.id(), &which.caller(), path, false)
        .await?;
    Ok(Json(about.into()))
}

/// A change of the tree. The path may also stand behind the question mark.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    path: Option<String>,
    from: Option<String>,
    to: Option<String>,
    mode: Option<String>,
    owner: Option<String>,
    group: Option<String>,
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
    #[serde(default)]
    replace: bool,
}

impl Change {
    fn caller(&self) -> FileCaller {
        file_caller(self.user.clone(), self.authority)
    }

    fn need<'a>(field: &str, value: Option<&'a String>) -> Result<&'a [u8], Error> {
        let value = value.filter(|value| !value.is_empty());
        value.map(String::as_bytes).ok_or_else(|| {
            Error::invalid(
                field,
                format!("{field} is required"),
                "give a path in the sandbox",
            )
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Aside {
    path: Option<String>,
    user: Option<String>,
}

async fn make_directory(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(aside): Query<Aside>,
    Body(asked): Body<Change>,
) -> Answer<StatusCode> {
    let asked = Change {
        path: asked.path.or(aside.path),
        user: asked.user.or(aside.user),
        ..asked
    };
    let mode = asked
        .mode
        .as_deref()
        .map(octal)
        .transpose()?
        .unwrap_or(0o755);
    let path = Change::need("path", asked.path.as_ref())?;
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let who = asked.caller();
    let made = used
        .runtime()
        .make_directory(used.id(), &who, path, mode, true);
    made.await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn rename(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Change>,
) -> Answer<StatusCode> {
    let from = Change::need("from", asked.from.as_ref())?;
    let to = Change::need("to", asked.to.as_ref())?;
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let who = asked.caller();
    let renamed = used
        .runtime()
        .rename(used.id(), &who, from, to, asked.replace);
    renamed.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Into a directory, under the same name.
async fn move_into(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Change>,
) -> Answer<StatusCode> {
    let from = Change::need("from", asked.from.as_ref())?;
    let directory = Change::need("to", asked.to.as_ref())?;
    let name = from
        .rsplit(|byte| *byte == b'/')
        .find(|part| !part.is_empty());
    let mut to = directory.to_vec();
    to.push(b'/');
    to.extend_from_slice(name.unwrap_or_default());
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let who = asked.caller();
    let renamed = used
        .runtime()
        .rename(used.id(), &who, from, &to, asked.replace);
    renamed.await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn copy(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Change>,
) -> Answer<StatusCode> {
    let from = Change::need("from", asked.from.as_ref())?;
    let to = Change::need("to", asked.to.as_ref())?;
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let who = asked.caller();
    let copied = used
        .runtime()
        .copy(used.id(), &who, from, to, asked.replace);
    copied.await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn chmod(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Change>,
) -> Answer<StatusCode> {
    let path = Change::need("path", asked.path.as_ref())?;
    let text = asked.mode.as_deref().unwrap_or_default();
    let mode = octal(text)?;
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    used.runtime()
        .chmod(used.id(), &asked.caller(), path, mode)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn chown(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Change>,
) -> Answer<StatusCode> {
    let path = Change::need("path", asked.path.as_ref())?;
    let owner = asked.owner.clone().unwrap_or_default();
    let group = asked.group.clone().unwrap_or_default();
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let who = asked.caller();
    let changed = used.runtime().chown(used.id(), &who, path, &owner, &group);
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}
