//! What is checked before any route: that the request is meant for us, that a browser sends it from a page
//! that may, and who the caller is.

use std::net::IpAddr;

use atoll_core::Context;
use atoll_model::{Code, Error, RequestId};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::answer::{Failure, sign};
use crate::browser::check_site;
use crate::{Access, App, Config};

/// Names the request, checks where it comes from, and signs the answer.
pub(crate) async fn watch(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = RequestId::random();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(id.clone());
    let begin = std::time::Instant::now();
    let checked = check_host(request.headers(), &app.config)
        .and_then(|()| check_origin(request.headers(), &app.config))
        .and_then(|()| check_site(&request));
    let response = match checked {
        Ok(()) => next.run(request).await,
        Err(error) => Failure(error).into_response(),
    };
    let status = response.status().as_u16();
    // The path only: what stands behind the question mark may be a secret.
    let took = begin.elapsed();
    if status >= 500 {
        tracing::error!(request = %id, %method, path, status, ?took, "answered");
    } else {
        tracing::debug!(request = %id, %method, path, status, ?took, "answered");
    }
    sign(response, &id)
}

/// The host part of an authority.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
}

/// A page elsewhere can make a browser believe that its own name leads here. Addresses cannot be taken over
/// like that.
fn check_host(headers: &HeaderMap, config: &Config) -> Result<(), Error> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let Some(host) = host.map(host_of) else {
        // Over the operator's socket some clients send none.
        return Ok(());
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let ours =
        host == "localhost" || host.parse::<IpAddr>().is_ok() || config.hosts.contains(&host);
    if ours {
        return Ok(());
    }
    Err(Error::new(
        Code::Misdirected,
        format!("{host} is not a name of this server"),
    )
    .remedy("ask by address, or start the server with --host NAME"))
}

/// Browsers say from which page a request comes.
fn check_origin(headers: &HeaderMap, config: &Config) -> Result<(), Error> {
    let Some(origin) = headers
        .get(header::ORIGIN)
        .and_then(|origin| origin.to_str().ok())
    else {
        return Ok(());
    };
    let own = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let same = origin
        .split_once("://")
        .is_some_and(|(_, place)| Some(place) == own);
    if same || config.origins.contains(origin) {
        return Ok(());
    }
    Err(Error::new(
        Code::PermissionDenied,
        "pages of this origin may not use this server",
    )
    .remedy("start the server with --cors-origin ORIGIN"))
}

/// The caller, as a route sees it: whoever is not known does not get there.
#[derive(Debug)]
pub(crate) struct Caller(pub(crate) Context);

impl FromRequestParts<App> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let request = parts.extensions.get::<RequestId>().cloned();
        let request = request.unwrap_or_else(RequestId::random);
        let given = secret(&parts.headers).or_else(|| secret_of_socket(parts));
        let context = match (app.config.access, given) {
            (Access::Open, None) => app.core.operator(request).await?,
            (_, Some(secret)) => app.core.authenticate(secret, request).await?,
            (Access::Keys, None) => {
                return Err(Error::new(Code::Unauthenticated, "no key came with this request")
                    .remedy("send the header X-API-Key: atl_…; the first key is in admin.key of the data directory")
                    .into());
            }
        };
        Ok(Self(context))
    }
}

/// Browsers cannot send headers of their own with a WebSocket: its key may stand behind the question mark.
fn secret_of_socket(parts: &Parts) -> Option<&str> {
    let upgrade = parts.headers.get(header::UPGRADE)?;
    if !upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    let words = parts.uri.query()?.split('&');
    words
        .into_iter()
        .find_map(|word| word.strip_prefix("api_key="))
}

fn secret(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        // Something that is no text is no key, but it is not nothing either.
        return Some(key.to_str().map_or("", str::trim));
    }
    let bearer = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = bearer.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}
