//! CORS headers for pages of the configured origins.

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::Config;

/// CORS layer for the configured origins.
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
        // Headers are validated by routes, wherever they come from. E2B clients send many, with
        // arbitrary names.
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
