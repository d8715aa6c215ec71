//! `/files`: downloads and uploads.

mod body;
mod metadata;
mod upload;

use atoll_core::SandboxRef;
use atoll_model::{Code, Error};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::get;
use axum::{Extension, Json, Router};

use super::signature::SignedQuery;
use super::target::{FileTarget, clean_path, invalid_username};
use crate::AppState;
use crate::e2b::error::{E2bError, E2bResult};
use crate::file_body;
use crate::serve::Connection;

use body::UploadBody;
pub(super) use metadata::ATTRIBUTE_PREFIX;

pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/files", get(read).post(write))
}

/// Checks the token or signature of a request and opens the sandbox.
async fn authorize(sandbox: &SandboxRef, parts: &Parts) -> E2bResult<(FileTarget, SignedQuery)> {
    let request = SignedQuery::from_uri(&parts.uri)?;
    request.authorize(sandbox, &parts.method, &parts.headers)?;
    if let Some(connection) = parts.extensions.get::<Connection>() {
        connection.authenticate();
    }
    let target = FileTarget::open(sandbox, request.username.clone()).await?;
    Ok((target, request))
}

async fn read(Extension(sandbox): Extension<SandboxRef>, parts: Parts) -> E2bResult {
    let (target, request) = authorize(&sandbox, &parts).await?;
    if !accepts_identity(&parts.headers) {
        let message = "no acceptable encoding found, supported: identity";
        return Err(E2bError::new(StatusCode::NOT_ACCEPTABLE, message));
    }
    let path = clean_path(request.path.as_deref().unwrap_or_default());
    let reading = file_body::open_file(
        &target.access,
        &target.run_as,
        path.as_bytes(),
        &parts.headers,
    )
    .await;
    match reading {
        Ok(opened) => Ok(opened.respond(target.access)),
        Err(error) => Err(to_e2b_error(error, &target, &path).await),
    }
}

async fn write(
    Extension(sandbox): Extension<SandboxRef>,
    parts: Parts,
    body: axum::body::Body,
) -> E2bResult<Json<Vec<upload::Written>>> {
    let (target, request) = authorize(&sandbox, &parts).await?;
    let mut body = UploadBody::new(body, &parts.headers)?;
    let written = upload::write_files(&target, request.path, &parts.headers, &mut body).await;
    if written.is_err() {
        // Clients read the response only after sending the whole body.
        body.discard().await;
    }
    written.map(Json)
}

/// Whether `Accept-Encoding` permits an unencoded response; true without that header.
fn accepts_identity(headers: &HeaderMap) -> bool {
    let header_lines = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let header_lines = header_lines.filter_map(|line| line.to_str().ok());
    let (mut identity, mut any) = (None, None);
    for coding in header_lines.flat_map(|line| line.split(',')) {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        let taken = weight.trim().parse() != Ok(0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "identity" => identity = Some(taken),
            "*" => any = Some(taken),
            _ => {}
        }
    }
    identity.or(any).unwrap_or(true)
}

/// Converts an error to E2B's status and message.
async fn to_e2b_error(error: Error, target: &FileTarget, path: &str) -> E2bError {
    let named = error.details.get("path").map(|path| clean_path(path));
    let path = named.as_deref().unwrap_or(path);
    match error.code {
        Code::UnknownUser => {
            E2bError::new(StatusCode::UNAUTHORIZED, invalid_username(&target.run_as))
        }
        Code::FileNotFound => {
            let message = format!("path '{path}' does not exist");
            E2bError::new(StatusCode::NOT_FOUND, message)
        }
        Code::NotAFile => {
            let what = if target.is_directory(path).await {
                "is a directory"
            } else {
                "is not a regular file"
            };
            E2bError::new(StatusCode::BAD_REQUEST, format!("path '{path}' {what}"))
        }
        Code::DiskFull => {
            let message = "not enough disk space available";
            E2bError::new(StatusCode::INSUFFICIENT_STORAGE, message)
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_accepted_unless_excluded() {
        for (header_lines, taken) in [
            ("", true),
            ("gzip, deflate", true),
            ("gzip;q=1, *;q=0.5", true),
            ("*;q=0, identity", true),
            ("identity;q=0.001", true),
            ("gzip, identity;q=0", false),
            ("identity; q=0.000", false),
            ("*;q=0", false),
        ] {
            let value = header_lines.parse().expect("a header");
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]);
            assert_eq!(accepts_identity(&headers), taken, "{header_lines}");
        }
        assert!(accepts_identity(&HeaderMap::new()));
    }
}
