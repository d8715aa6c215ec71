//! Tickets: `?ticket=` instead of a key, once.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, response::IntoResponse as _};
use serde::Deserialize;
use serde_json::json;

use crate::App;
use crate::answer::Answer;
use crate::body::Body;
use crate::guard::Caller;
use crate::views::Time;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/tickets", post(make))
}

/// There is nothing to say about one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct New {}

async fn make(State(app): State<App>, Caller(caller): Caller, Body(New {}): Body<New>) -> Answer {
    let made = app.core.make_ticket(&caller)?;
    let body = json!({ "ticket": made.secret, "expiresAt": Time::new(made.expires_at) });
    Ok((StatusCode::CREATED, Json(body)).into_response())
}
