//! Looking for files.

use atoll_model::{Error, Found, Search};
use axum::Json;
use serde::{Deserialize, Serialize};

use super::place::Files;
use super::tree::EntryView;
use crate::answer::Answer;
use crate::body::{Query, checked_limit};

/// How many places are told if nobody says, and at most.
const USUAL: u32 = 100;
const MOST: u32 = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    path: String,
    /// A pattern of names.
    #[serde(default)]
    query: String,
    /// Text in files.
    #[serde(default)]
    content: String,
    limit: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Place {
    #[serde(flatten)]
    entry: EntryView,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl From<Found> for Place {
    fn from(found: Found) -> Self {
        let (line, text) = found.line.unzip();
        Self {
            entry: found.entry.into(),
            line,
            text: text.map(|text| String::from_utf8_lossy(&text).into_owned()),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Places {
    results: Vec<Place>,
    truncated: bool,
}

pub(super) async fn search(files: Files, Query(asked): Query<Asked>) -> Answer<Json<Places>> {
    if asked.query.is_empty() && asked.content.is_empty() {
        let message = "nothing is looked for";
        return Err(Error::invalid("query", message, "give query, content or both").into());
    }
    let wanted = Search {
        name: asked.query.into(),
        text: asked.content.into(),
        limit: checked_limit(asked.limit, USUAL, MOST)?,
    };
    let found = files.runtime();
    let found = found.search(files.id(), &files.who, asked.path.as_bytes(), wanted);
    let (found, truncated) = found.await?;
    let results = found.into_iter().map(Place::from).collect();
    Ok(Json(Places { results, truncated }))
}
