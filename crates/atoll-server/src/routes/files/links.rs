//! Signed links: one file, one way, until a time, without a key.

use atoll_core::{Act, Link};
use atoll_model::{Caller as FileCaller, SandboxId, WriteOptions};
use axum::Json;
use axum::body::Body as RawBody;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::contents;
use super::place::{Files, Rights};
use super::tree::EntryView;
use crate::App;
use crate::answer::Answer;
use crate::body::{Body, Query};
use crate::guard::{self, Caller};
use crate::views::Time;

/// How long a link is good if nobody says, in seconds.
const USUAL: u32 = 3600;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Asked {
    path: String,
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
    expires_in: Option<u32>,
}

/// What stands behind a link's question mark.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signed {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
    expires: i64,
    signature: String,
}

pub(super) async fn make_download(
    app: State<App>,
    caller: Caller,
    id: Path<String>,
    headers: HeaderMap,
    asked: Body<Asked>,
) -> Answer<Json<Value>> {
    make(Act::Download, &app, &caller, &id, &headers, asked)
}

pub(super) async fn make_upload(
    app: State<App>,
    caller: Caller,
    id: Path<String>,
    headers: HeaderMap,
    asked: Body<Asked>,
) -> Answer<Json<Value>> {
    make(Act::Upload, &app, &caller, &id, &headers, asked)
}

fn make(
    act: Act,
    app: &App,
    Caller(caller): &Caller,
    id: &str,
    headers: &HeaderMap,
    Body(asked): Body<Asked>,
) -> Answer<Json<Value>> {
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
    let (origin, sandbox) = (guard::origin(headers), &link.sandbox);
    let query = serde_urlencoded::to_string(&signed).unwrap_or_default();
    let url = format!("{origin}/sandboxes/{sandbox}/files/{}?{query}", act.name());
    let expires_at = Time::new(link.expires.saturating_mul(1_000_000));
    Ok(Json(json!({ "url": url, "expiresAt": expires_at })))
}

/// Where a link leads, if it is good.
async fn follow(act: Act, app: &App, id: &str, signed: Signed) -> Answer<(Files, String)> {
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
    let who = link.who;
    Ok((Files { used, who }, link.path))
}

pub(super) async fn download(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(signed): Query<Signed>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (files, path) = follow(Act::Download, &app, &id, signed).await?;
    contents::download(files, path.as_bytes(), &headers).await
}

pub(super) async fn upload(
    State(app): State<App>,
    Path(id): Path<String>,
    Query(signed): Query<Signed>,
    body: RawBody,
) -> Answer<Json<EntryView>> {
    let (files, path) = follow(Act::Upload, &app, &id, signed).await?;
    let options = WriteOptions {
        parents: true,
        ..WriteOptions::default()
    };
    contents::upload(files, path.as_bytes(), options, body).await
}
