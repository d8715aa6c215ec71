//! `/files`: a file's bytes, out and in.

mod body;
mod metadata;
mod upload;

use atoll_core::Doorstep;
use atoll_model::{Code, Error};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::get;
use axum::{Extension, Json, Router};

use super::target::{Place, clean, unknown_user};
use super::signature::Asked;
use crate::App;
use crate::e2b::error::{Answer, Refusal};
use crate::serve::Connection;
use crate::file_body;

use body::Body;
pub(super) use metadata::PREFIX;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/files", get(read).post(write))
}

/// Lets the caller of a request in.
async fn enter(step: &Doorstep, parts: &Parts) -> Answer<(Place, Asked)> {
    let asked = Asked::told(&parts.uri)?;
    asked.admit(step, &parts.method, &parts.headers)?;
    if let Some(connection) = parts.extensions.get::<Connection>() {
        connection.authenticate();
    }
    let place = Place::enter(step, asked.username.clone()).await?;
    Ok((place, asked))
}

async fn read(Extension(step): Extension<Doorstep>, parts: Parts) -> Answer {
    let (place, asked) = enter(&step, &parts).await?;
    if !takes_plain(&parts.headers) {
        let message = "no acceptable encoding found, supported: identity";
        return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, message));
    }
    let path = clean(asked.path.as_deref().unwrap_or_default());
    let reading = file_body::open(&place.used, &place.who, path.as_bytes(), &parts.headers).await;
    match reading {
        Ok(opened) => Ok(opened.answer(place.used)),
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

/// Whether bytes may come as they are: who says nothing of it takes them.
fn takes_plain(headers: &HeaderMap) -> bool {
    let said = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let said = said.filter_map(|line| line.to_str().ok());
    let (mut plain, mut any) = (None, None);
    for coding in said.flat_map(|line| line.split(',')) {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        let taken = weight.trim().parse() != Ok(0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "identity" => plain = Some(taken),
            "*" => any = Some(taken),
            _ => {}
        }
    }
    plain.or(any).unwrap_or(true)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_as_they_are_unless_that_is_refused() {
        for (said, taken) in [
            ("", true),
            ("gzip, deflate", true),
            ("gzip;q=1, *;q=0.5", true),
            ("*;q=0, identity", true),
            ("identity;q=0.001", true),
            ("gzip, identity;q=0", false),
            ("identity; q=0.000", false),
            ("*;q=0", false),
        ] {
            let value = said.parse().expect("a header");
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]);
            assert_eq!(takes_plain(&headers), taken, "{said}");
        }
        assert!(takes_plain(&HeaderMap::new()));
    }
}
