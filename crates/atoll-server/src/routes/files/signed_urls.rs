//! Signed URLs: one action on one file until a time, without an API key.

use atoll_core::{SandboxRef, SignedUrl, UrlAction};
use atoll_model::{RunAs, SandboxId, WriteOptions};
use axum::body::Body as RawBody;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::change::require_path;
use super::contents;
use super::target::{AuthorityParam, FileTarget};
use super::tree::EntryView;
use crate::AppState;
use crate::api_types::{BinaryBody, Time};
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{JsonBody, Path, Query};
use crate::middleware::ServerUrl;
use crate::serve::Connection;

/// Default lifetime, in seconds.
const DEFAULT_TTL_SECS: u32 = 3600;

/// Request for a signed URL.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewSignedUrl, example = json!({"path": "/etc/hostname", "expiresIn": 60}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateSignedUrl {
    #[schema(min_length = 1)]
    path: String,
    user: Option<String>,
    #[serde(default)]
    authority: AuthorityParam,
    /// In seconds.
    #[schema(minimum = 1, maximum = 86400, default = 3600)]
    expires_in: Option<u32>,
}

/// A URL that permits one action on one file until a time, without a key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SignedUrl)]
pub(super) struct SignedUrlView {
    url: String,
    expires_at: Time,
}

/// Query of a signed URL.
#[derive(Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SignedUrlQuery {
    #[param(min_length = 1)]
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default)]
    authority: AuthorityParam,
    /// Unix time in seconds.
    expires: i64,
    /// HMAC over action, sandbox, path, user and expiry.
    #[param(pattern = "^[0-9a-f]{64}$")]
    signature: String,
}

/// Create a download URL
///
/// The URL permits reading one file at `…/files/download` until it expires, without a key.
#[utoipa::path(post, path = "/sandboxes/{id}/files/download-url", request_body = CreateSignedUrl, responses((status = 200, body = SignedUrlView)))]
pub(super) async fn make_download(
    app: State<AppState>,
    caller: Authenticated,
    Path(id): Path<String>,
    origin: ServerUrl,
    request: JsonBody<CreateSignedUrl>,
) -> ApiResult<Json<SignedUrlView>> {
    create_signed_url(UrlAction::Download, &app, &caller, &id, &origin, request)
}

/// Create an upload URL
///
/// The URL permits writing one file at `…/files/upload` until it expires, without a key.
#[utoipa::path(post, path = "/sandboxes/{id}/files/upload-url", request_body = CreateSignedUrl, responses((status = 200, body = SignedUrlView)))]
pub(super) async fn make_upload(
    app: State<AppState>,
    caller: Authenticated,
    Path(id): Path<String>,
    origin: ServerUrl,
    request: JsonBody<CreateSignedUrl>,
) -> ApiResult<Json<SignedUrlView>> {
    create_signed_url(UrlAction::Upload, &app, &caller, &id, &origin, request)
}

fn create_signed_url(
    action: UrlAction,
    app: &AppState,
    Authenticated(caller): &Authenticated,
    id: &str,
    ServerUrl(origin): &ServerUrl,
    JsonBody(request): JsonBody<CreateSignedUrl>,
) -> ApiResult<Json<SignedUrlView>> {
    require_path("path", &request.path)?;
    let run_as = RunAs {
        user: request.user.clone(),
        authority: request.authority.into(),
    };
    let seconds = request.expires_in.unwrap_or(DEFAULT_TTL_SECS);
    let wanted = (action, request.path, run_as);
    let (link, signature) = app.core.sign_url(caller, id, wanted, seconds)?;
    let signed = SignedUrlQuery {
        path: link.path,
        user: request.user,
        authority: request.authority,
        expires: link.expires,
        signature,
    };
    let sandbox = &link.sandbox;
    let query = serde_urlencoded::to_string(&signed).unwrap_or_default();
    let url = format!(
        "{origin}/sandboxes/{sandbox}/files/{}?{query}",
        action.name()
    );
    let expires_at = Time::new(link.expires.saturating_mul(1_000_000));
    Ok(Json(SignedUrlView { url, expires_at }))
}

/// The fields of a signed URL's query; further fields are ignored.
#[derive(Debug, Deserialize)]
struct SignedUrlParams {
    path: String,
    user: Option<String>,
    #[serde(default)]
    authority: AuthorityParam,
    expires: i64,
    signature: String,
}

/// Whether a query has a valid signature for a file of this sandbox, for either action.
pub(crate) fn is_signed_url(sandbox: &SandboxRef, query: &str) -> bool {
    let Ok(params) = serde_urlencoded::from_str::<SignedUrlParams>(query) else {
        return false;
    };
    let mut link = SignedUrl {
        action: UrlAction::Download,
        sandbox: sandbox.id().clone(),
        path: params.path,
        run_as: RunAs {
            user: params.user,
            authority: params.authority.into(),
        },
        expires: params.expires,
    };
    [UrlAction::Download, UrlAction::Upload]
        .into_iter()
        .any(|action| {
            link.action = action;
            sandbox.verify_signed_url(&link, &params.signature)
        })
}

/// Verifies a signed URL and opens its sandbox.
async fn open_signed_url(
    action: UrlAction,
    app: &AppState,
    id: &str,
    signed: SignedUrlQuery,
    connection: Option<Extension<Connection>>,
) -> ApiResult<(FileTarget, String)> {
    // An invalid id gets a random one, whose signature cannot match.
    let sandbox: SandboxId = id.parse().unwrap_or_else(|_| SandboxId::random());
    let run_as = RunAs {
        user: signed.user,
        authority: signed.authority.into(),
    };
    let link = SignedUrl {
        action,
        sandbox,
        path: signed.path,
        run_as,
        expires: signed.expires,
    };
    let access = app.core.open_signed_url(&link, &signed.signature).await?;
    if let Some(Extension(connection)) = connection {
        connection.authenticate();
    }
    let run_as = link.run_as;
    Ok((FileTarget { access, run_as }, link.path))
}

/// Download with a signed URL
///
/// Supports `Range`, `If-Range`, `If-None-Match` and `If-Modified-Since`.
#[utoipa::path(get, path = "/sandboxes/{id}/files/download", security(()), params(SignedUrlQuery),
    responses((status = 200, content_type = "application/octet-stream", body = BinaryBody, headers(("X-File-Size" = String, description = "Size in bytes when the file was opened"))),
        (status = 206, description = "The requested range", content_type = "application/octet-stream", body = BinaryBody),
        (status = 304, description = "Not modified")))]
pub(super) async fn download(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(signed): Query<SignedUrlQuery>,
    connection: Option<Extension<Connection>>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let (target, path) =
        open_signed_url(UrlAction::Download, &app, &id, signed, connection).await?;
    contents::download(target, path.as_bytes(), &headers).await
}

/// Upload with a signed URL
///
/// Creates missing parent directories.
#[utoipa::path(put, path = "/sandboxes/{id}/files/upload", security(()), params(SignedUrlQuery),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 200, body = EntryView)))]
pub(super) async fn upload(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(signed): Query<SignedUrlQuery>,
    connection: Option<Extension<Connection>>,
    body: RawBody,
) -> ApiResult<Json<EntryView>> {
    let (target, path) = open_signed_url(UrlAction::Upload, &app, &id, signed, connection).await?;
    let options = WriteOptions {
        parents: true,
        ..WriteOptions::default()
    };
    contents::upload(target, path.as_bytes(), options, body).await
}
