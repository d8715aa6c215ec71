//! Changes of the file tree. `user` and `authority` are accepted in the query and in the body; the
//! body takes precedence.

use atoll_model::Error;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::target::{AuthorityParam, FileTarget, RunAsQuery};
use crate::error::ApiResult;
use crate::extract::{JsonBody, Query};

/// Rejects an empty path.
pub(super) fn require_path<'a>(field: &str, value: &'a str) -> Result<&'a [u8], Error> {
    if value.is_empty() {
        let message = format!("{field} is required");
        return Err(Error::invalid(field, message, "give a path in the sandbox"));
    }
    Ok(value.as_bytes())
}

/// Parses permission bits in octal.
pub(super) fn parse_mode(text: &str) -> Result<u32, Error> {
    let mode = u32::from_str_radix(text.trim_start_matches("0o"), 8);
    mode.ok().filter(|mode| *mode <= 0o7777).ok_or_else(|| {
        let message = format!("{text:?} is not a mode");
        Error::invalid("mode", message, "write it in octal, such as 644")
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OptionalPathQuery {
    /// Required here or in the body.
    #[param(min_length = 1)]
    path: Option<String>,
}

/// Request to create a directory.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"path": "src"}))]
#[serde(deny_unknown_fields)]
pub(super) struct NewDirectory {
    /// Required here or in the query.
    #[schema(min_length = 1)]
    path: Option<String>,
    /// Permission bits in octal.
    #[schema(pattern = "^(0o)?[0-7]{1,4}$", default = "755")]
    mode: Option<String>,
    user: Option<String>,
    authority: Option<AuthorityParam>,
}

/// Create a directory
///
/// Creates missing parents too. An existing directory is not an error.
#[utoipa::path(post, path = "/sandboxes/{id}/files/mkdir", params(RunAsQuery, OptionalPathQuery), request_body = NewDirectory, responses((status = 204)))]
pub(super) async fn make_directory(
    target: FileTarget,
    Query(path_query): Query<OptionalPathQuery>,
    JsonBody(request): JsonBody<NewDirectory>,
) -> ApiResult<StatusCode> {
    let path = request.path.or(path_query.path).unwrap_or_default();
    let path = require_path("path", &path)?;
    let mode = request.mode.as_deref().map_or(Ok(0o755), parse_mode)?;
    let target = target.with_run_as(request.user, request.authority);
    let runtime = target.runtime();
    let made = runtime.make_directory(target.id(), &target.run_as, path, mode, true);
    made.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Source and destination.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfer {
    #[schema(min_length = 1)]
    from: String,
    #[schema(min_length = 1)]
    to: String,
    /// Overwrite the target if it exists.
    #[serde(default)]
    replace: bool,
    user: Option<String>,
    authority: Option<AuthorityParam>,
}

/// Rename
#[utoipa::path(post, path = "/sandboxes/{id}/files/rename", params(RunAsQuery), request_body = Transfer, responses((status = 204)))]
pub(super) async fn rename(
    target: FileTarget,
    JsonBody(request): JsonBody<Transfer>,
) -> ApiResult<StatusCode> {
    let (from, to) = (
        require_path("from", &request.from)?,
        require_path("to", &request.to)?,
    );
    let target = target.with_run_as(request.user, request.authority);
    let runtime = target.runtime();
    let renamed = runtime.rename(target.id(), &target.run_as, from, to, request.replace);
    renamed.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Move
///
/// Moves into the directory `to`, keeping the name.
#[utoipa::path(post, path = "/sandboxes/{id}/files/move", params(RunAsQuery), request_body = Transfer, responses((status = 204)))]
pub(super) async fn move_into(
    target: FileTarget,
    JsonBody(request): JsonBody<Transfer>,
) -> ApiResult<StatusCode> {
    require_path("to", &request.to)?;
    let name = request.from.rsplit('/').find(|part| !part.is_empty());
    let to = format!("{}/{}", request.to, name.unwrap_or_default());
    rename(target, JsonBody(Transfer { to, ..request })).await
}

/// Copy
///
/// Copies directories with their contents.
#[utoipa::path(post, path = "/sandboxes/{id}/files/copy", params(RunAsQuery), request_body = Transfer, responses((status = 204)))]
pub(super) async fn copy(
    target: FileTarget,
    JsonBody(request): JsonBody<Transfer>,
) -> ApiResult<StatusCode> {
    let (from, to) = (
        require_path("from", &request.from)?,
        require_path("to", &request.to)?,
    );
    let target = target.with_run_as(request.user, request.authority);
    let runtime = target.runtime();
    let copied = runtime.copy(target.id(), &target.run_as, from, to, request.replace);
    copied.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// New permission bits of a file.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ModeChange {
    #[schema(min_length = 1)]
    path: String,
    /// In octal.
    #[schema(pattern = "^(0o)?[0-7]{1,4}$")]
    mode: String,
    user: Option<String>,
    authority: Option<AuthorityParam>,
}

/// Set permission bits
#[utoipa::path(post, path = "/sandboxes/{id}/files/chmod", params(RunAsQuery), request_body = ModeChange, responses((status = 204)))]
pub(super) async fn chmod(
    target: FileTarget,
    JsonBody(request): JsonBody<ModeChange>,
) -> ApiResult<StatusCode> {
    let path = require_path("path", &request.path)?;
    let mode = parse_mode(&request.mode)?;
    let target = target.with_run_as(request.user, request.authority);
    let changed = target
        .runtime()
        .chmod(target.id(), &target.run_as, path, mode);
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// New owner of a file.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnerChange {
    #[schema(min_length = 1)]
    path: String,
    /// Name or UID; default: unchanged.
    #[serde(default)]
    owner: String,
    /// Name or GID; default: unchanged.
    #[serde(default)]
    group: String,
    user: Option<String>,
    authority: Option<AuthorityParam>,
}

/// Set owner and group
#[utoipa::path(post, path = "/sandboxes/{id}/files/chown", params(RunAsQuery), request_body = OwnerChange, responses((status = 204)))]
pub(super) async fn chown(
    target: FileTarget,
    JsonBody(request): JsonBody<OwnerChange>,
) -> ApiResult<StatusCode> {
    let path = require_path("path", &request.path)?;
    let OwnerChange { owner, group, .. } = &request;
    let target = target.with_run_as(request.user.clone(), request.authority);
    let runtime = target.runtime();
    let changed = runtime.chown(target.id(), &target.run_as, path, owner, group);
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}
