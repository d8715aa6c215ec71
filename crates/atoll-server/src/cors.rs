//! What browsers are told and refused: pages of listed origins may use the server, others may not even try.

use atoll_model::{Code, Error};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::Config;

/// What a page of a listed origin may send, and see of an answer.
pub(crate) fn cors(config: &Config) -> CorsLayer {
    let origins = config.origins.iter();
    let origins = origins.filter_map(|origin| HeaderValue::from_str(origin).ok());
    let own = HeaderName::from_static;
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ])
        // What a header says has to be right wherever it comes from. E2B's clients have many, and some of any name.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            header::CONTENT_RANGE,
            header::ETAG,
            header::RETRY_AFTER,
            own("x-file-size"),
            own("x-next-cursor"),
            own("x-next-token"),
            own("x-request-id"),
            own("x-total-count"),
            own("x-total-running"),
            own("x-truncated"),
        ])
        .max_age(std::time::Duration::from_mins(10))
}

/// Pictures, scripts and frames of a page elsewhere come without its origin, but browsers say that they are not of
/// ours. Who follows a link to us does no harm.
pub(crate) fn check_fetch_metadata(request: &Request) -> Result<(), Error> {
    let headers = request.headers();
    let header_value = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    let elsewhere = matches!(
        header_value("sec-fetch-site"),
        Some(b"cross-site" | b"same-site")
    );
    let link = request.method() == Method::GET
        && header_value("sec-fetch-mode") == Some(b"navigate")
        && header_value("sec-fetch-dest") == Some(b"document");
    if headers.contains_key(header::ORIGIN) || !elsewhere || link {
        return Ok(());
    }
    Err(Error::new(
        Code::PermissionDenied,
        "pages elsewhere may not include what is here",
    )
    .remedy(
        "use fetch from a page whose origin the server's operator has listed (setting cors-origin)",
    ))
}
