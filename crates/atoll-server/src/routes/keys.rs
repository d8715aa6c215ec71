//! Keys of the caller's org.

use atoll_core::KeyRequest;
use atoll_model::{Error, Scope};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Json, Router};
use serde::Deserialize;

use super::Made;
use crate::App;
use crate::answer::Answer;
use crate::body::Body;
use crate::guard::Caller;
use crate::views::KeyView;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/keys", get(list).post(make))
        .route("/keys/{id}", delete(revoke))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct New {
    name: String,
    scope: Option<Scope>,
    expires_at: Option<String>,
}

async fn make(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(asked): Body<New>,
) -> Made<KeyView> {
    let expires_at = asked.expires_at.map(|text| {
        let time: Result<jiff::Timestamp, _> = text.parse();
        time.map(jiff::Timestamp::as_microsecond).map_err(|_| {
            Error::invalid(
                "expiresAt",
                format!("{text:?} is not a time"),
                "write it like 2027-01-31T12:00:00Z",
            )
        })
    });
    let request = KeyRequest {
        name: asked.name,
        scope: asked.scope.unwrap_or(Scope::Sandboxes),
        expires_at: expires_at.transpose()?,
    };
    let made = app.core.make_key(&caller, request).await?;
    let view = KeyView::new(made.key, Some(made.secret));
    Ok((StatusCode::CREATED, Json(view)))
}

async fn list(State(app): State<App>, Caller(caller): Caller) -> Answer<Json<Vec<KeyView>>> {
    let keys = app.core.keys(&caller).await?;
    Ok(Json(
        keys.into_iter()
            .map(|key| KeyView::new(key, None))
            .collect(),
    ))
}

async fn revoke(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    app.core.revoke_key(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
