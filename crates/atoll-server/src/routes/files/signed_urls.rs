//! Signed links: one file, one way, until a time, without a key.

use atoll_core::{Act, Doorstep, Link};
use atoll_model::{Caller as FileCaller, SandboxId, WriteOptions};
use axum::body::Body as RawBody;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::change::need;
use super::contents;
use super::target::{Files, Rights};
use super::tree::EntryView;
use crate::App;
use crate::error::Answer;
use crate::extract::{Body, Path, Query};
use crate::middleware::{Caller, Origin};
use crate::serve::Connection;
use crate::api_types::{BinaryBody, Time};

/// How long a link is good if nobody says, in seconds.
const USUAL: u32 = 3600;

/// The file and the lifetime of a signed URL.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewSignedUrl, example = json!({"path": "/etc/hostname", "expiresIn": 60}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Asked {
    #[schema(min_length = 1)]
    path: String,
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
    /// In seconds.
    #[schema(minimum = 1, maximum = 86400, default = 3600)]
    expires_in: Option<u32>,
}

/// A URL that permits one action on one file until a time, without a key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SignedUrl {
    url: String,
    expires_at: Time,
}

/// What stands behind a link's question mark.
#[derive(Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Signed {
    #[param(min_length = 1)]
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
    /// In seconds since 1970.
    expires: i64,
    /// Over all of it.
    #[param(pattern = "^[0-9a-f]{64}$")]
    signature: String,
}

/// Make a download link
///
/// One file, without a key, until a time. It leads to `…/files/download`.
#[utoipa::path(post, path = "/sandboxes/{id}/files/download-url", request_body = Asked, responses((status = 200, body = SignedUrl)))]
pub(super) async fn make_download(
    app: State<App>,
    caller: Caller,
    Path(id): Path<String>,
    origin: Origin,
    asked: Body<Asked>,
) -> Answer<Json<SignedUrl>> {
    make(Act::Download, &app, &caller, &id, &origin, asked)
}

/// Make an upload link
///
/// One file, without a key, until a time. It leads to `…/files/upload`.
#[utoipa::path(post, path = "/sandboxes/{id}/files/upload-url", request_body = Asked, responses((status = 200, body = SignedUrl)))]
pub(super) async fn make_upload(
    app: State<App>,
    caller: Caller,
    Path(id): Path<String>,
    origin: Origin,
    asked: Body<Asked>,
) -> Answer<Json<SignedUrl>> {
    make(Act::Upload, &app, &caller, &id, &origin, asked)
}

fn make(
    act: Act,
    app: &App,
    Caller(caller): &Caller,
    id: &str,
    Origin(origin): &Origin,
    Body(asked): Body<Asked>,
) -> Answer<Json<SignedUrl>> {
    need("path", &asked.path)?;
    let who = FileCaller {
        user: asked.user.clone(),
        authority: asked.authority.into(),
    };
    let seconds = asked.expires_in.unwrap_or(USUAL);
    let wanted = (act, asked.path, who);
    let (link, signature) = app.core.sign_link(caller, id, wanted, seconds)?;
    let signed = Signed {
        path: link.path,
        user: asked.user,
        authority: asked.authority,
        expires: link.expires,
        signature,
    };
    let sandbox = &link.sandbox;
    let query = serde_urlencoded::to_string(&signed).unwrap_or_default();
    let url = format!("{origin}/sandboxes/{sandbox}/files/{}?{query}", act.name());
    let expires_at = Time::new(link.expires.saturating_mul(1_000_000));
    Ok(Json(SignedUrl { url, expires_at }))
}

/// What a query must have to be a link's, among whatever else it has.
#[derive(Debug, Deserialize)]
struct Quoted {
    path: String,
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
    expires: i64,
    signature: String,
}

/// Whether the query of some request has the signature of a link to this sandbox, for either act.
pub(crate) fn is_link(step: &Doorstep, query: &str) -> bool {
    let Ok(quoted) = serde_urlencoded::from_str::<Quoted>(query) else {
        return false;
    };
    let mut link = Link {
        act: Act::Download,
        sandbox: step.id().clone(),
        path: quoted.path,
        who: FileCaller {
            user: quoted.user,
            authority: quoted.authority.into(),
        },
        expires: quoted.expires,
    };
    [Act::Download, Act::Upload].into_iter().any(|act| {
        link.act = act;
        step.knows_link(&link, &quoted.signature)
    })
}

/// Where a link leads, if it is good.
async fn follow(
    act: Act,
    app: &App,
    id: &str,
    signed: Signed,
    connection: Option<Extension<Connection>>,
) -> Answer<(Files, String)> {
    // A name that is no id is in no link that was ever signed.
    let sandbox: SandboxId = id.parse().unwrap_or_else(|_| SandboxId::random());
    let who = FileCaller {
        user: signed.user,
        authority: signed.authority.into(),
    };
    let link = Link {
        act,
        sandbox,
        path: signed.path,
        who,
        expires: signed.expires,
    };
    let used = app.core.follow_link(&link, &signed.signature).await?;
    if let Some(Extension(connection)) = connection {
        connection.authenticate();
    }
    let who = link.who;
    Ok((Files { used, who }, link.path))
}

/// Follow a download link
///
/// With `Range`, a part of the file. What somebody has (`If-None-Match`, `If-Modified-Since`) is not sent again.
#[utoipa::path(get, path = "/sandboxes/{id}/files/download", security(()), params(Signed),
    responses((status = 200, content_type = "application/octet-stream", body = BinaryBody, headers(("X-File-Size" = String, description = "In bytes, when it was opened"))),
        (status = 206, description = "The part that was asked for", content_type = "application/octet-stream", body = BinaryBody),
        (status = 304, description = "It is what somebody has")))]
pub(super) async fn download(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(signed): Query<Signed>,
    connection: Option<Extension<Connection>>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (files, path) = follow(Act::Download, &app, &id, signed, connection).await?;
    contents::download(files, path.as_bytes(), &headers).await
}

/// Follow an upload link
///
/// Missing directories above the file are made.
#[utoipa::path(put, path = "/sandboxes/{id}/files/upload", security(()), params(Signed),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 200, body = EntryView)))]
pub(super) async fn upload(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(signed): Query<Signed>,
    connection: Option<Extension<Connection>>,
    body: RawBody,
) -> Answer<Json<EntryView>> {
    let (files, path) = follow(Act::Upload, &app, &id, signed, connection).await?;
    let options = WriteOptions {
        parents: true,
        ..WriteOptions::default()
    };
    contents::upload(files, path.as_bytes(), options, body).await
}
