//! `/files`: a file's bytes, out and in.

mod body;
mod metadata;
mod upload;

use atoll_core::Doorstep;
use atoll_model::{Code, Error};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Extension, Json, Router};

use super::place::{Place, clean, unknown_user};
use super::signature::Asked;
use crate::App;
use crate::e2b::refusal::{Answer, Refusal};
use crate::transfer;

use body::Body;
pub(super) use metadata::PREFIX;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/files", get(read).post(write))
}

/// Lets the caller of a request in.
async fn enter(step: &Doorstep, parts: &Parts) -> Answer<(Place, Asked)> {
    let asked = Asked::told(&parts.uri)?;
    asked.admit(step, &parts.method, &parts.headers)?;
    let place = Place::enter(step, asked.username.clone()).await?;
    Ok((place, asked))
}

async fn read(Extension(step): Extension<Doorstep>, parts: Parts) -> Answer {
    let (place, asked) = enter(&step, &parts).await?;
    let path = clean(asked.path.as_deref().unwrap_or_default());
    let reading = transfer::open(&place.used, &place.who, path.as_bytes(), &parts.headers).await;
    match reading {
        Ok(opened) => Ok(opened.answer(place.used, parts.extensions.get().cloned())),
        Err(error) => Err(refusal(error, &place, &path).await),
    }
}

async fn write(
    Extension(step): Extension<Doorstep>,
    parts: Parts,
    body: axum::body::Body,
) -> Answer<Json<Vec<upload::Written>>> {
    let (place, asked) = enter(&step, &parts).await?;
    let mut body = Body::new(body, &parts.headers)?;
    let written = upload::all(&place, asked.path, &parts.headers, &mut body).await;
    if written.is_err() {
        // Who still sends would not read our answer.
        body.discard().await;
    }
    written.map(Json)
}

/// A refusal in the words that E2B's clients and their users know.
async fn refusal(error: Error, place: &Place, path: &str) -> Refusal {
    let named = error.details.get("path").map(|path| clean(path));
    let path = named.as_deref().unwrap_or(path);
    match error.code {
        Code::UnknownUser => Refusal::new(StatusCode::UNAUTHORIZED, unknown_user(&place.who)),
        Code::FileNotFound => {
            let message = format!("path '{path}' does not exist");
            Refusal::new(StatusCode::NOT_FOUND, message)
        }
        Code::NotAFile => {
            let what = if place.is_directory(path).await {
                "is a directory"
            } else {
                "is not a regular file"
            };
            Refusal::new(StatusCode::BAD_REQUEST, format!("path '{path}' {what}"))
        }
        Code::DiskFull => {
            let message = "not enough disk space available";
            Refusal::new(StatusCode::INSUFFICIENT_STORAGE, message)
        }
        _ => error.into(),
    }
}
