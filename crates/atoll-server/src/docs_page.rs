//! The HTML page that renders the OpenAPI document. It is a single file that requests only that
//! document.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse};
use base64::Engine as _;
use sha2::{Digest as _, Sha256};

const PAGE: &str = include_str!("docs_page.html");

/// Content security policy: allows only the page's own script and style.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (script, style) = (digest("script"), digest("style"));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// Hash of an inline element's content, as a CSP source.
fn digest(element: &str) -> String {
    let inside = PAGE
        .split_once(&format!("<{element}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    let text = inside.map_or("", |(text, _)| text);
    let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text));
    format!("sha256-{digest}")
}

pub(crate) fn respond() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(PAGE))
}
