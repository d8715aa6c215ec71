//! Lists in parts: how one is asked for, and how the answer says that there is more.

use atoll_core::{Page, Slice};
use atoll_model::Error;
use axum::Json;
use axum::http::{HeaderMap, HeaderValue};
use serde::Deserialize;
use utoipa::IntoParams;

/// The longest part of a list.
const MOST: u32 = 100;

/// Which part of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Asked {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the page before.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
}

impl Asked {
    pub(crate) fn page(&self) -> Result<Page, Error> {
        asked(self.limit, self.cursor.as_ref())
    }
}

/// How many are asked for.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Error> {
    let limit = asked.unwrap_or(MOST);
    if (1..=MOST).contains(&limit) {
        return Ok(limit);
    }
    let message = format!("limit is {limit}");
    Err(Error::invalid("limit", message, "give 1 to 100"))
}

/// Which part is asked for.
pub(crate) fn asked(asked: Option<u32>, cursor: Option<&String>) -> Result<Page, Error> {
    let before = cursor.map(|cursor| {
        let parts = cursor.split_once('.');
        let parsed = parts.and_then(|(time, id)| Some((time.parse().ok()?, id.to_owned())));
        parsed.ok_or_else(|| {
            Error::invalid(
                "cursor",
                "this cursor is not one of ours",
                "give the X-Next-Cursor of the page before",
            )
        })
    });
    Ok(Page {
        limit: limit(asked)?,
        before: before.transpose()?,
    })
}

/// A part of a list, and where the next one begins.
pub(crate) type Part<T> = (HeaderMap, Json<Vec<T>>);

/// A part of a list as an answer.
pub(crate) fn part<T, V: From<T>>(slice: Slice<T>) -> Part<V> {
    let mut headers = HeaderMap::new();
    if let Some((at, id)) = slice.next
        && let Ok(cursor) = HeaderValue::from_str(&format!("{at}.{id}"))
    {
        headers.insert("x-next-cursor", cursor);
    }
    let items = slice.items.into_iter().map(V::from);
    (headers, Json(items.collect()))
}
