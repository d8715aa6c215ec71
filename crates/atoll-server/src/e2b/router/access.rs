//! Access control for ports of sandboxes.
//!
//! An unknown sandbox, one of another org and a private one get the same response, so that callers
//! without a credential learn nothing. Credentials are therefore checked whether or not the sandbox
//! exists, and before it is opened.

use atoll_core::{RequestContext, SandboxRef, TokenScope, is_ticket, port_link_expiry};
use atoll_model::{Category, Error, PortAccess, RequestId, SandboxId, Scope};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, header};

use super::target::{ENVD, Target};
use super::{envd, header_value};
use crate::auth::is_websocket;
use crate::middleware::{check_fetch_metadata, check_origin, request_authority};
use crate::{AppState, AuthMode};

/// Query parameter and cookie with a signed URL's token for a port.
pub(crate) const LINK: &str = "atoll_token";
/// Maximum number of cookies of that name that are checked; each costs a hash.
const MAX_COOKIES: usize = 4;

/// Result of the access check.
pub(super) enum Verdict {
    /// Allowed, for this key or ticket, or without either.
    Admitted(Option<RequestContext>),
    /// Respond as for an unknown sandbox.
    Unknown,
    /// Respond with 403, as E2B clients expect for a sandbox whose ports need a token.
    TokenMissing,
}

/// Credentials of a request, extracted before the first await.
pub(super) struct PresentedCredentials {
    /// The request has the token for the port, a signature by it, or a signed URL for the port.
    pub(super) token: bool,
    /// The token of a signed URL among the query parameters, if it is valid.
    pub(super) link: Option<String>,
    key: Option<String>,
    ticket: Option<String>,
    /// Trusted mode, and the request does not come from another site.
    open: bool,
    request: RequestId,
}

impl PresentedCredentials {
    /// Extracts the credentials. `found` is the requested sandbox, if it exists.
    pub(super) fn from_request(
        app: &AppState,
        target: &Target,
        found: Option<&SandboxRef>,
        request: &Request,
    ) -> Self {
        let headers = request.headers();
        let parameter = |name| query_value(request, name);
        let key = header_key(app, headers).map(ToOwned::to_owned);
        let key = key.or_else(|| parameter("api_key").filter(|_| is_websocket(headers)));
        let ticket = parameter("ticket").filter(|_| request.method() == Method::GET);
        let id = request.extensions().get::<RequestId>().cloned();
        let private = access_of(found) == PortAccess::Private;
        let link = parameter(LINK).filter(|link| is_link(app, target, link));
        Self {
            token: match target.port {
                ENVD => {
                    private
                        && (presents_token(app, target, TokenScope::Data, headers)
                            || is_signed(app, target, request))
                }
                _ => {
                    link.is_some()
                        || presents_token(app, target, TokenScope::Ports, headers)
                        || presents_link(app, target, headers)
                }
            },
            link,
            key: key.filter(|key| app.core.is_api_key(key)),
            ticket: ticket.filter(|ticket| is_ticket(ticket)),
            open: app.config.auth == AuthMode::Trusted && is_own_page(app, request),
            request: id.unwrap_or_else(RequestId::random),
        }
    }

    /// The caller, if a key or ticket is valid.
    async fn caller(self, app: &AppState) -> Result<Option<RequestContext>, Error> {
        let (kind, context) = match (self.key, self.ticket) {
            (Some(key), _) => ("key", app.core.authenticate(&key, self.request).await),
            (None, Some(ticket)) => ("ticket", app.core.redeem(&ticket, self.request)),
            (None, None) if self.open => ("open", app.core.operator(self.request).await),
            (None, None) => return Ok(None),
        };
        app.metrics.auth_attempt(kind, context.is_ok());
        match context {
            Ok(context) => Ok(Some(context)),
            Err(error) if error.code.category() == Category::Auth => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Decides about a request to a port.
pub(super) async fn authorize(
    app: &AppState,
    port: u16,
    found: Option<&SandboxRef>,
    credentials: PresentedCredentials,
) -> Result<Verdict, Error> {
    let access = access_of(found);
    let open = match port {
        // The routes check the token of sandboxes created through E2B's interface.
        ENVD => access != PortAccess::Private,
        _ => access == PortAccess::Public,
    };
    if found.is_some() && (open || credentials.token) {
        return Ok(Verdict::Admitted(None));
    }
    if port == ENVD {
        return Ok(Verdict::Unknown);
    }
    let is_allowed = |sandbox: &SandboxRef, context: &RequestContext| {
        sandbox.org() == context.org.id && context.require(Scope::Sandboxes).is_ok()
    };
    Ok(match (found, credentials.caller(app).await?) {
        (Some(sandbox), Some(context)) if is_allowed(sandbox, &context) => {
            Verdict::Admitted(Some(context))
        }
        (Some(_), _) if access == PortAccess::Token => Verdict::TokenMissing,
        _ => Verdict::Unknown,
    })
}

fn access_of(found: Option<&SandboxRef>) -> PortAccess {
    found.map_or(PortAccess::Private, SandboxRef::port_access)
}

/// Whether a request has the sandbox's token for a scope. Constant time, also for an unknown
/// sandbox.
fn presents_token(app: &AppState, target: &Target, scope: TokenScope, headers: &HeaderMap) -> bool {
    let token = header_value(headers, scope.header());
    match (token, id_of(target)) {
        (Some(token), Ok(id)) => app.core.verify_token(&id, scope, token),
        _ => false,
    }
}

/// Whether a file request has a signature by the sandbox's token. Constant time, also for an
/// unknown sandbox.
fn is_signed(app: &AppState, target: &Target, request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let Ok(id) = id_of(target) else {
        return false;
    };
    request.uri().path() == "/files"
        && envd::signature::is_signed_by_token(&app.core.token(&id, TokenScope::Data), query)
}

/// Whether a header or a cookie has a signed URL's token for the port.
fn presents_link(app: &AppState, target: &Target, headers: &HeaderMap) -> bool {
    let header = header_value(headers, TokenScope::Ports.header());
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let cookies = cookies.flat_map(|value| value.split(';'));
    let cookies = cookies.filter_map(|cookie| {
        let (name, value) = cookie.split_once('=')?;
        (name.trim() == LINK).then_some(value.trim())
    });
    let mut links = header.into_iter().chain(cookies.take(MAX_COOKIES));
    links.any(|link| is_link(app, target, link))
}

/// Whether a text is a signed URL's token for the port. Constant time, also for an unknown sandbox.
fn is_link(app: &AppState, target: &Target, link: &str) -> bool {
    let id = id_of(target);
    id.is_ok_and(|id| app.core.is_opened_by_link(&id, target.port, link))
}

fn id_of(target: &Target) -> Result<SandboxId, impl Sized> {
    target.sandbox.as_deref().unwrap_or_default().parse()
}

/// Cookie with which a browser sends the token in later requests.
pub(super) fn cookie(link: &str, is_over_tls: bool) -> Option<HeaderValue> {
    let left = port_link_expiry(link)? - jiff::Timestamp::now().as_second();
    let secure = if is_over_tls { "; Secure" } else { "" };
    let text = format!("{LINK}={link}; Path=/; Max-Age={left}; HttpOnly; SameSite=Lax{secure}");
    HeaderValue::from_str(&text).ok()
}

/// API key in the headers. Other values are left alone: they may be credentials for the program
/// behind the port.
fn header_key<'a>(app: &AppState, headers: &'a HeaderMap) -> Option<&'a str> {
    let bearer = || {
        let (scheme, secret) = header_value(headers, "authorization")?.split_once(' ')?;
        let secret = secret.trim();
        (scheme.eq_ignore_ascii_case("bearer") && app.core.is_api_key(secret)).then_some(secret)
    };
    let key = header_value(headers, "x-api-key").map(str::trim);
    key.filter(|key| app.core.is_api_key(key)).or_else(bearer)
}

fn query_value(request: &Request, name: &str) -> Option<String> {
    let query = request.uri().query()?;
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(query).ok()?;
    let mut pairs = pairs.into_iter();
    pairs.find_map(|(key, value)| (key == name).then_some(value))
}

/// In trusted mode, requests from other sites are not trusted.
fn is_own_page(app: &AppState, request: &Request) -> bool {
    let own = request_authority(request.uri(), request.headers());
    check_origin(request.headers(), own.as_deref(), &app.config).is_ok()
        && check_fetch_metadata(request).is_ok()
}
