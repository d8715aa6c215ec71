//! The service `filesystem.Filesystem`: metadata, changes and watches.

mod entry;
mod watch;

use atoll_core::SandboxRef;
use atoll_model::{Code, Error, RunAs};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::ATTRIBUTE_PREFIX;
use super::process::basic_auth_user;
use super::target::{FileTarget, clean_path, invalid_username, parent};
use crate::AppState;
use crate::e2b::connect_rpc::{ConnectError, Unary};
use entry::EntryInfo;

/// Maximum number of entries in a listing.
const MAX_ENTRIES: u32 = 100_000;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/filesystem.Filesystem/Stat", post(stat))
        .route("/filesystem.Filesystem/MakeDir", post(make_dir))
        .route("/filesystem.Filesystem/Move", post(rename))
        .route("/filesystem.Filesystem/ListDir", post(list_dir))
        .route("/filesystem.Filesystem/Remove", post(remove))
        .merge(watch::routes())
}

/// Extractor for the sandbox of the request and the user in its basic authentication.
impl<S: Sync> FromRequestParts<S> for FileTarget {
    type Rejection = ConnectError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ConnectError> {
        let sandbox = parts.extensions.get::<SandboxRef>();
        let sandbox =
            sandbox.ok_or_else(|| ConnectError::new("internal", "the request has no sandbox"))?;
        Ok(Self::open(sandbox, basic_auth_user(&parts.headers)).await?)
    }
}

impl FileTarget {
    async fn describe(&self, path: &str) -> Result<EntryInfo, ConnectError> {
        let described = self.runtime();
        let described =
            described.describe(self.id(), &self.run_as, path.as_bytes(), ATTRIBUTE_PREFIX);
        let described = described.await.map_err(|error| self.connect_error(error))?;
        Ok(described.into())
    }

    /// Creates one directory.
    async fn make_directory(&self, path: &str) -> Result<(), Error> {
        let made = self.runtime();
        let made = made.make_directory(self.id(), &self.run_as, path.as_bytes(), 0o755, false);
        made.await
    }

    /// Creates missing parent directories.
    async fn make_above(&self, path: &str) -> Result<(), ConnectError> {
        let Some(parent) = parent(path) else {
            return Ok(());
        };
        let made = self.runtime();
        let made = made.make_directory(self.id(), &self.run_as, parent.as_bytes(), 0o755, true);
        made.await.map_err(|error| self.connect_error(error))
    }

    fn connect_error(&self, error: Error) -> ConnectError {
        to_e2b_error(error, &self.run_as)
    }
}

/// Converts an error to E2B's code and message.
fn to_e2b_error(error: Error, run_as: &RunAs) -> ConnectError {
    let errno = error.details.get("errno");
    match error.code {
        Code::UnknownUser => ConnectError::new("unauthenticated", invalid_username(run_as)),
        _ if errno.is_some_and(|errno| errno == "ELOOP") => {
            ConnectError::new("failed_precondition", error.message)
        }
        _ => error.into(),
    }
}

#[derive(Debug, Default, Deserialize)]
struct PathRequest {
    #[serde(default)]
    path: String,
}

async fn stat(
    target: FileTarget,
    Unary(request): Unary<PathRequest>,
) -> Result<Json<Value>, ConnectError> {
    let entry = target.describe(&clean_path(&request.path)).await?;
    Ok(Json(json!({ "entry": entry })))
}

async fn make_dir(
    target: FileTarget,
    Unary(request): Unary<PathRequest>,
) -> Result<Json<Value>, ConnectError> {
    let path = clean_path(&request.path);
    target.make_above(&path).await?;
    match target.make_directory(&path).await {
        Ok(()) => {}
        Err(error) if error.code == Code::FileExists => {
            return Err(path_exists_error(&target, &path).await);
        }
        Err(error) => return Err(target.connect_error(error)),
    }
    let entry = target.describe(&path).await?;
    Ok(Json(json!({ "entry": entry })))
}

async fn path_exists_error(target: &FileTarget, path: &str) -> ConnectError {
    if target.is_directory(path).await {
        let message = format!("directory already exists: {path}");
        return ConnectError::new("already_exists", message);
    }
    let message = format!("path already exists but it is not a directory: {path}");
    ConnectError::new("invalid_argument", message)
}

#[derive(Debug, Default, Deserialize)]
struct Move {
    #[serde(default)]
    source: String,
    #[serde(default)]
    destination: String,
}

async fn rename(
    target: FileTarget,
    Unary(request): Unary<Move>,
) -> Result<Json<Value>, ConnectError> {
    let (from, to) = (
        clean_path(&request.source),
        clean_path(&request.destination),
    );
    target.make_above(&to).await?;
    let (id, runtime) = (target.id(), target.runtime());
    let renamed = runtime.rename(id, &target.run_as, from.as_bytes(), to.as_bytes(), true);
    renamed.await.map_err(|error| target.connect_error(error))?;
    let entry = target.describe(&to).await?;
    Ok(Json(json!({ "entry": entry })))
}

#[derive(Debug, Default, Deserialize)]
struct List {
    #[serde(default)]
    path: String,
    /// 0 means one level.
    #[serde(default)]
    depth: u32,
}

async fn list_dir(
    target: FileTarget,
    Unary(request): Unary<List>,
) -> Result<Json<Value>, ConnectError> {
    let (path, depth) = (clean_path(&request.path), request.depth.max(1));
    let runtime = target.runtime();
    let which = (path.as_bytes(), depth, MAX_ENTRIES);
    let listed = runtime.describe_tree(target.id(), &target.run_as, which, ATTRIBUTE_PREFIX);
    let (entries, more) = listed.await.map_err(|error| target.connect_error(error))?;
    if more {
        let message = format!("{path} has more than {MAX_ENTRIES} entries: list a subdirectory");
        return Err(ConnectError::new("failed_precondition", message));
    }
    let entries: Vec<EntryInfo> = entries.into_iter().map(EntryInfo::from).collect();
    Ok(Json(json!({ "entries": entries })))
}

/// Removes a file or a directory with its contents. A missing file is not an error.
async fn remove(
    target: FileTarget,
    Unary(request): Unary<PathRequest>,
) -> Result<Json<Value>, ConnectError> {
    let path = clean_path(&request.path);
    let runtime = target.runtime();
    let removed = runtime.remove(target.id(), &target.run_as, path.as_bytes(), true);
    match removed.await {
        Err(error) if error.code != Code::FileNotFound => Err(target.connect_error(error)),
        _ => Ok(Json(json!({}))),
    }
}
