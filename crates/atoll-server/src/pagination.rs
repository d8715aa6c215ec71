//! Cursor pagination: query parameters and the `X-Next-Cursor` header.

use atoll_model::{Error, Page, PageRequest};
use axum::Json;
use axum::http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use utoipa::IntoParams;

/// Largest page.
const MAX_LIMIT: u32 = 100;

/// Query parameters of a paginated list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the previous page.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
}

impl PageQuery {
    pub(crate) fn page(&self) -> Result<PageRequest, Error> {
        parse_page(self.limit, self.cursor.as_ref())
    }
}

/// Checks the page size.
pub(crate) fn parse_limit(requested: Option<u32>) -> Result<u32, Error> {
    let limit = requested.unwrap_or(MAX_LIMIT);
    if (1..=MAX_LIMIT).contains(&limit) {
        return Ok(limit);
    }
    let message = format!("limit is {limit}");
    Err(Error::invalid("limit", message, "give 1 to 100"))
}

/// Parses page size and cursor.
pub(crate) fn parse_page(
    requested: Option<u32>,
    cursor: Option<&String>,
) -> Result<PageRequest, Error> {
    let before = cursor.map(|cursor| {
        let parts = cursor.split_once('.');
        let parsed = parts.and_then(|(time, id)| Some((time.parse().ok()?, id.to_owned())));
        parsed.ok_or_else(|| {
            Error::invalid(
                "cursor",
                "invalid cursor",
                "give the X-Next-Cursor of the previous page",
            )
        })
    });
    Ok(PageRequest {
        limit: parse_limit(requested)?,
        cursor: before.transpose()?,
    })
}

/// A page as a response, with the cursor of the next page in a header.
pub(crate) type PageResponse<T> = (HeaderMap, Json<Vec<T>>);

/// Builds the response for a page.
pub(crate) fn page_response<T, V: From<T>>(slice: Page<T>) -> PageResponse<V> {
    let mut headers = HeaderMap::new();
    if let Some((at, id)) = slice.next
        && let Ok(cursor) = HeaderValue::from_str(&format!("{at}.{id}"))
    {
        headers.insert("x-next-cursor", cursor);
    }
    let items = slice.items.into_iter().map(V::from);
    (headers, Json(items.collect()))
}
