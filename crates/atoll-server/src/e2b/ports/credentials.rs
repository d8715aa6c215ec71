//! Strips this server's credentials from a request before a program in a sandbox sees it: API keys,
//! tickets, access tokens and signatures, in headers, cookies and query parameters. Other values
//! stay unchanged.

use atoll_core::{SandboxRef, TokenScope, is_key, is_port_link, is_secret_hex, is_ticket};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use subtle::ConstantTimeEq as _;

use crate::e2b::envd::signature;
use crate::routes::is_signed_url;

/// Headers for this server only, removed whatever their value.
const SERVER_HEADERS: [&str; 3] = [
    "e2b-traffic-access-token",
    "e2b-sandbox-id",
    "e2b-sandbox-port",
];

/// Decodes with and without padding, as programs do.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Strips credentials from the headers of a request.
pub(super) fn strip_headers(sandbox: &SandboxRef, headers: &mut HeaderMap) {
    for name in SERVER_HEADERS {
        headers.remove(name);
    }
    let names: Vec<HeaderName> = headers.keys().cloned().collect();
    for name in names {
        let before: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
        let after: Vec<HeaderValue> = before
            .iter()
            .filter_map(|value| strip_value(sandbox, &name, value))
            .collect();
        if before == after {
            continue;
        }
        headers.remove(&name);
        for value in after {
            headers.append(&name, value);
        }
    }
}

/// A header value without credentials; `None` if nothing remains.
fn strip_value(
    sandbox: &SandboxRef,
    name: &HeaderName,
    value: &HeaderValue,
) -> Option<HeaderValue> {
    // One char per byte, so that values that are not text pass unchanged.
    let text: String = value.as_bytes().iter().copied().map(char::from).collect();
    let left = match *name {
        header::COOKIE => without(&text, ';', |cookie| {
            let mut parts = cookie.split('=').map(str::trim);
            parts.any(|part| is_credential(sandbox, &decode(part.trim_matches('"'))))
        })?,
        header::SEC_WEBSOCKET_PROTOCOL => without(&text, ',', |protocol| {
            is_credential(sandbox, protocol.trim())
        })?,
        header::REFERER => match text.split_once('?') {
            Some((page, query)) => match strip_query(sandbox, query) {
                Some(left) if left.is_empty() => page.to_owned(),
                Some(left) => format!("{page}?{left}"),
                None => return Some(value.clone()),
            },
            None => return Some(value.clone()),
        },
        _ if holds_credential(sandbox, name, &text) => return None,
        _ => return Some(value.clone()),
    };
    let bytes: Vec<u8> = left.chars().map(|letter| letter as u8).collect();
    HeaderValue::from_bytes(&bytes).ok()
}

/// Whether a word of a header value is a credential.
fn holds_credential(sandbox: &SandboxRef, name: &HeaderName, text: &str) -> bool {
    let has_credential = |text: &str| {
        let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.any(|word| is_credential(sandbox, word))
            // A static key may contain other characters.
            || text.split_whitespace().any(|word| sandbox.is_static_key(word))
    };
    match name.as_str() {
        // E2B clients also send keys for E2B's own service, which have other lengths.
        "x-api-key" if text.starts_with("atl_") || text.starts_with("e2b_") => true,
        // The token may belong to another sandbox.
        "x-access-token" if is_secret_hex(text) => true,
        "authorization" => {
            let basic = text
                .split_once(' ')
                .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
            let basic = basic.and_then(|(_, coded)| BASE64.decode(coded.trim()).ok());
            has_credential(text)
                || basic.is_some_and(|bytes| has_credential(&String::from_utf8_lossy(&bytes)))
        }
        _ => has_credential(text),
    }
}

/// Strips credentials from the query of a request.
pub(super) fn strip_path(sandbox: &SandboxRef, target: PathAndQuery) -> PathAndQuery {
    let left = target.query().and_then(|query| strip_query(sandbox, query));
    let text = match left {
        None => return target,
        Some(left) if left.is_empty() => target.path().to_owned(),
        Some(left) => format!("{}?{left}", target.path()),
    };
    // Falls back to `/` if the result is invalid.
    text.parse()
        .unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

/// A query without credentials; `None` if it has none.
fn strip_query(sandbox: &SandboxRef, query: &str) -> Option<String> {
    let left = without(query, '&', |parameter| {
        let mut parts = parameter.split('=').map(decode);
        let signed = || signature::is_signed_by(sandbox, query) || is_signed_url(sandbox, query);
        parts.clone().next().is_some_and(|name| name == "signature") && signed()
            || parts.any(|part| is_credential(sandbox, &part))
    });
    let left = left.unwrap_or_default();
    (left.len() != query.len()).then_some(left)
}

/// A list without the removed elements; `None` if none remain.
fn without(list: &str, separator: char, is_removed: impl Fn(&str) -> bool) -> Option<String> {
    let left: Vec<&str> = list
        .split(separator)
        .filter(|part| !is_removed(part))
        .collect();
    let text = left.join(separator.encode_utf8(&mut [0; 4]));
    (!left.is_empty()).then(|| text.trim_start().to_owned())
}

/// URL-decodes a value of a query or a cookie.
fn decode(value: &str) -> String {
    let pairs = serde_urlencoded::from_str::<Vec<(String, String)>>(&format!("={value}"));
    let pair = pairs.ok().and_then(|mut pairs| pairs.pop());
    pair.map_or_else(|| value.to_owned(), |(_, value)| value)
}

/// Whether a word is an API key or the static key, a ticket, a signed URL's token for a port, or an access token of
/// this sandbox.
fn is_credential(sandbox: &SandboxRef, word: &str) -> bool {
    let is_token = |scope| {
        sandbox
            .token(scope)
            .as_bytes()
            .ct_eq(word.as_bytes())
            .into()
    };
    is_key(word)
        || sandbox.is_static_key(word)
        || is_ticket(word)
        || is_port_link(word)
        || is_secret_hex(word)
            && [TokenScope::Data, TokenScope::Ports]
                .into_iter()
                .any(is_token)
}
