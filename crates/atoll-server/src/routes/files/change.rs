//! Changes of the tree. As whom they are made may stand in the body too, and wins over the query there.

use atoll_model::Error;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::target::{As, Files, Rights};
use crate::error::Answer;
use crate::extract::{Body, Query};

/// A path must be there.
pub(super) fn need<'a>(field: &str, value: &'a str) -> Result<&'a [u8], Error> {
    if value.is_empty() {
        let message = format!("{field} is required");
        return Err(Error::invalid(field, message, "give a path in the sandbox"));
    }
    Ok(value.as_bytes())
}

/// Permission bits as people write them.
pub(super) fn octal(text: &str) -> Result<u32, Error> {
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8);
    mode.ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        let message = format!("{text:?} is not a mode");
        Error::invalid("mode", message, "write it in octal, like 644")
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Aside {
    /// Here or in the body.
    #[param(min_length = 1)]
    path: Option<String>,
}

/// A directory that is to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"path": "src"}))]
#[serde(deny_unknown_fields)]
pub(super) struct NewDirectory {
    /// Here or in the query.
    #[schema(min_length = 1)]
    path: Option<String>,
    /// Permission bits in octal.
    #[schema(pattern = "^(0o)?[0-7]{1,4}$", default = "755")]
    mode: Option<String>,
    user: Option<String>,
    authority: Option<Rights>,
}

/// Make a directory
///
/// Missing ones above it too; one that is there is no failure.
#[utoipa::path(post, path = "/sandboxes/{id}/files/mkdir", params(As, Aside), request_body = NewDirectory, responses((status = 204)))]
pub(super) async fn make_directory(
    files: Files,
    Query(aside): Query<Aside>,
    Body(asked): Body<NewDirectory>,
) -> Answer<StatusCode> {
    let path = asked.path.or(aside.path).unwrap_or_default();
    let path = need("path", &path)?;
    let mode = asked.mode.as_deref().map_or(Ok(0o755), octal)?;
    let files = files.acting(asked.user, asked.authority);
    let runtime = files.runtime();
    let made = runtime.make_directory(files.id(), &files.who, path, mode, true);
    made.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// From one place to another.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfer {
    #[schema(min_length = 1)]
    from: String,
    #[schema(min_length = 1)]
    to: String,
    /// What is there may go.
    #[serde(default)]
    replace: bool,
    user: Option<String>,
    authority: Option<Rights>,
}

/// Rename
#[utoipa::path(post, path = "/sandboxes/{id}/files/rename", params(As), request_body = Transfer, responses((status = 204)))]
pub(super) async fn rename(files: Files, Body(asked): Body<Transfer>) -> Answer<StatusCode> {
    let (from, to) = (need("from", &asked.from)?, need("to", &asked.to)?);
    let files = files.acting(asked.user, asked.authority);
    let runtime = files.runtime();
    let renamed = runtime.rename(files.id(), &files.who, from, to, asked.replace);
    renamed.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Move
///
/// Into the directory `to`, under the same name.
#[utoipa::path(post, path = "/sandboxes/{id}/files/move", params(As), request_body = Transfer, responses((status = 204)))]
pub(super) async fn move_into(files: Files, Body(asked): Body<Transfer>) -> Answer<StatusCode> {
    need("to", &asked.to)?;
    let name = asked.from.rsplit('/').find(|part| !part.is_empty());
    let to = format!("{}/{}", asked.to, name.unwrap_or_default());
    rename(files, Body(Transfer { to, ..asked })).await
}

/// Copy
///
/// With all that is below.
#[utoipa::path(post, path = "/sandboxes/{id}/files/copy", params(As), request_body = Transfer, responses((status = 204)))]
pub(super) async fn copy(files: Files, Body(asked): Body<Transfer>) -> Answer<StatusCode> {
    let (from, to) = (need("from", &asked.from)?, need("to", &asked.to)?);
    let files = files.acting(asked.user, asked.authority);
    let runtime = files.runtime();
    let copied = runtime.copy(files.id(), &files.who, from, to, asked.replace);
    copied.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Permission bits for what is there.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ModeChange {
    #[schema(min_length = 1)]
    path: String,
    /// In octal.
    #[schema(pattern = "^(0o)?[0-7]{1,4}$")]
    mode: String,
    user: Option<String>,
    authority: Option<Rights>,
}

/// Set permission bits
#[utoipa::path(post, path = "/sandboxes/{id}/files/chmod", params(As), request_body = ModeChange, responses((status = 204)))]
pub(super) async fn chmod(files: Files, Body(asked): Body<ModeChange>) -> Answer<StatusCode> {
    let path = need("path", &asked.path)?;
    let mode = octal(&asked.mode)?;
    let files = files.acting(asked.user, asked.authority);
    let changed = files.runtime().chmod(files.id(), &files.who, path, mode);
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Another owner for what is there.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnerChange {
    #[schema(min_length = 1)]
    path: String,
    /// Name or number; as it was if nothing is said.
    #[serde(default)]
    owner: String,
    /// Name or number; as it was if nothing is said.
    #[serde(default)]
    group: String,
    user: Option<String>,
    authority: Option<Rights>,
}

/// Set owner and group
#[utoipa::path(post, path = "/sandboxes/{id}/files/chown", params(As), request_body = OwnerChange, responses((status = 204)))]
pub(super) async fn chown(files: Files, Body(asked): Body<OwnerChange>) -> Answer<StatusCode> {
    let path = need("path", &asked.path)?;
    let OwnerChange { owner, group, .. } = &asked;
    let files = files.acting(asked.user.clone(), asked.authority);
    let runtime = files.runtime();
    let changed = runtime.chown(files.id(), &files.who, path, owner, group);
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}
