//! HTML error pages for browsers that navigate to a port of a sandbox. Other clients get JSON.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::Deserialize;

use crate::middleware::FromSandbox;

/// Upper bound for the server's own error bodies.
const MAX_BODY_BYTES: usize = 16 << 10;

/// JSON error of the router.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ErrorMessage {
    message: String,
    sandbox_id: Option<String>,
    port: Option<u16>,
}

/// Middleware that replaces the server's own JSON errors by HTML if a browser navigates.
pub(super) async fn html_for_browsers(request: Request, next: Next) -> Response {
    let wants_html = accepts_html(request.headers());
    let response = next.run(request).await;
    let status = response.status();
    let refused = status.is_client_error() || status.is_server_error();
    if !wants_html || !refused || response.extensions().get::<FromSandbox>().is_some() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let body = to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    let Ok(error_message) = serde_json::from_slice::<ErrorMessage>(&body) else {
        return Response::from_parts(parts, Body::from(body));
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'",
        ),
    ] {
        parts.headers.insert(name, HeaderValue::from_static(value));
    }
    Response::from_parts(parts, Body::from(error_message.page(status)))
}

/// Whether the request is a browser navigation.
fn accepts_html(headers: &HeaderMap) -> bool {
    let header_value = |name| headers.get(name).map(HeaderValue::as_bytes);
    // Browsers send `Sec-Fetch-*` only to trustworthy origins.
    if let Some(mode) = header_value("sec-fetch-mode") {
        return mode == b"navigate";
    }
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| {
        accept
            .split(',')
            .any(|kind| kind.trim().starts_with("text/html"))
    })
}

impl ErrorMessage {
    fn page(&self, status: StatusCode) -> String {
        let message = escape_html(&self.message);
        let port = self
            .port
            .map(|port| format!("<br>Port <code>{port}</code>"));
        let sandbox = self.sandbox_id.as_deref().map(|id| {
            let port = port.unwrap_or_default();
            format!("<p>Sandbox <code>{}</code>{port}</p>\n", escape_html(id))
        });
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<title>{message}</title>\n\
             <style>body {{ font: 1.1em/1.6 system-ui, sans-serif; max-width: 36em; margin: 15vh auto; padding: 0 1em; \
             color-scheme: light dark }}</style>\n<h1>{message}</h1>\n{}<p>{status}</p>\n</html>\n",
            sandbox.unwrap_or_default()
        )
    }
}

/// Escapes text for HTML.
fn escape_html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_navigations_get_html() {
        let browser = "text/html,application/xhtml+xml,*/*;q=0.8";
        for (lines, wants_html) in [
            (vec![], false),
            (vec![("accept", "*/*")], false),
            (vec![("accept", "application/json, text/plain")], false),
            (vec![("accept", browser)], true),
            (
                vec![("accept", "*/*"), ("sec-fetch-mode", "navigate")],
                true,
            ),
            (vec![("accept", browser), ("sec-fetch-mode", "cors")], false),
        ] {
            let headers = lines.iter().map(|(name, value)| {
                let value = HeaderValue::from_static(value);
                (header::HeaderName::from_static(name), value)
            });
            assert_eq!(accepts_html(&headers.collect()), wants_html, "{lines:?}");
        }
    }

    #[test]
    fn error_page_escapes_html() {
        let error_message = ErrorMessage {
            message: "<script>&\"".into(),
            sandbox_id: Some("<b>".into()),
            port: Some(80),
        };
        let page = error_message.page(StatusCode::BAD_GATEWAY);
        assert!(
            page.contains("<h1>&lt;script&gt;&amp;&quot;</h1>"),
            "{page}"
        );
        assert!(page.contains("<code>&lt;b&gt;</code><br>Port <code>80</code>"));
        assert!(page.contains("502 Bad Gateway"));
    }
}
