//! Templates: what sandboxes start from.

use atoll_core::TemplateView;
use atoll_model::{Code, Error, Scope};
use atoll_worker::template::{self, Options};
use axum::body::Body as RawBody;
use axum::extract::{FromRequest as _, Path, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::answer::{Answer, Failure};
use crate::body::{Body, Query, checked_limit, is_json};
use crate::guard::Caller;
use crate::views::Time;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/templates", get(list).post(make))
        .route("/templates/{name}", get(look).delete(remove))
}

fn view(template: &TemplateView) -> Value {
    let TemplateView { name, meta, .. } = template;
    let created = i64::try_from(meta.created_at).unwrap_or(i64::MAX);
    json!({
        "templateID": name, "name": name, "default": template.is_default, "source": meta.source,
        "user": meta.user.name, "sudo": meta.sudo, "size": meta.size, "files": meta.files,
        "createdAt": Time::new(created.saturating_mul(1_000_000)),
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    limit: Option<u32>,
    /// The name of the last one of the page before.
    cursor: Option<String>,
}

async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<Listed>,
) -> Answer<Response> {
    let limit = checked_limit(asked.limit, 100, 100)? as usize;
    let all = app.core.templates(&caller).await?;
    let begin = match &asked.cursor {
        None => 0,
        // After one that has gone meanwhile comes nothing.
        Some(last) => {
            let place = all.iter().position(|template| template.name == *last);
            place.map_or(all.len(), |place| place + 1)
        }
    };
    let rest = &all[begin..];
    let page = &rest[..rest.len().min(limit)];
    let mut response = Json(page.iter().map(view).collect::<Vec<_>>()).into_response();
    if let Some(last) = page.last().filter(|_| rest.len() > limit)
        && let Ok(cursor) = HeaderValue::from_str(&last.name)
    {
        response.headers_mut().insert("x-next-cursor", cursor);
    }
    Ok(response)
}

async fn look(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(name): Path<String>,
) -> Answer<Json<Value>> {
    Ok(Json(view(&app.core.template(&caller, &name).await?)))
}

async fn remove(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    app.core.remove_template(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How a template that is sent is to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    name: Option<String>,
    #[serde(default)]
    replace: bool,
    sudo: Option<bool>,
}

/// A template that is not sent but made here.
#[derive(Debug, Deserialize)]
struct Recipe {
    #[serde(rename = "name")]
    _name: String,
}

async fn make(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<New>,
    request: Request,
) -> Answer {
    // Before anything of it is read.
    caller.require(Scope::Admin)?;
    if is_json(request.headers()) {
        let Body(Recipe { .. }) = Body::from_request(request, &app).await?;
        return Err(Failure(
            Error::new(
                Code::UnsupportedByHost,
                "templates from Dockerfiles, images and snapshots cannot be made here",
            )
            .remedy("send a tar archive of a root file system: POST /templates?name=NAME"),
        ));
    }
    let name = asked
        .name
        .ok_or_else(|| Error::invalid("name", "name is required", "POST /templates?name=NAME"))?;
    let options = Options {
        replace: asked.replace,
        sudo: asked.sudo.unwrap_or(true),
        ..Options::default()
    };
    let (sender, stream) = template::stream();
    let added = app.core.add_template(&caller, &name, stream, options);
    // Both at once: what is sent is unpacked as it comes.
    let (sent, added) = tokio::join!(send(request.into_body(), sender), added);
    let template = added?;
    sent?;
    Ok((StatusCode::CREATED, Json(view(&template))).into_response())
}

/// Sends a body to be unpacked. If it breaks off, so does what is unpacked.
async fn send(body: RawBody, sender: template::Sender) -> Result<(), Error> {
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk
            .map_err(|_| Error::invalid("body", "the body broke off", "send it again, whole"))?;
        if !sender.send(chunk.to_vec()).await {
            break;
        }
    }
    sender.end().await;
    Ok(())
}
