//! Search for file names and contents.

use atoll_model::{Error, SearchHit};
use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::target::{FileTarget, RunAsQuery};
use super::tree::EntryView;
use crate::error::ApiResult;
use crate::extract::{Query, checked_limit};

/// Number of results: default and maximum.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SearchQuery {
    /// Directory to search, with all its subdirectories.
    #[param(min_length = 1, example = "/etc")]
    path: String,
    /// Glob pattern for names.
    #[serde(default)]
    query: String,
    /// Text to find in files.
    #[serde(default)]
    content: String,
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// A search result.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FoundFile)]
struct FoundFile {
    #[serde(flatten)]
    entry: EntryView,
    /// Line number, from 1; only for text.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// The line.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl From<SearchHit> for FoundFile {
    fn from(found: SearchHit) -> Self {
        let (line, text) = found.line.unzip();
        Self {
            entry: found.entry.into(),
            line,
            text: text.map(|text| String::from_utf8_lossy(&text).into_owned()),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FoundFiles)]
pub(super) struct FoundFiles {
    results: Vec<FoundFile>,
    /// There are more results than `limit`.
    truncated: bool,
}

/// Search
///
/// Finds names, text in files, or both.
#[utoipa::path(get, path = "/sandboxes/{id}/files/search", params(SearchQuery, RunAsQuery), responses((status = 200, body = FoundFiles)))]
pub(super) async fn search(
    target: FileTarget,
    Query(query): Query<SearchQuery>,
) -> ApiResult<Json<FoundFiles>> {
    if query.query.is_empty() && query.content.is_empty() {
        let message = "query and content are both empty";
        return Err(Error::invalid("query", message, "give query, content or both").into());
    }
    let wanted = atoll_model::SearchQuery {
        name: query.query.into(),
        text: query.content.into(),
        limit: checked_limit(query.limit, DEFAULT_LIMIT, MAX_LIMIT)?,
    };
    let found = target.runtime();
    let found = found.search(target.id(), &target.run_as, query.path.as_bytes(), wanted);
    let (found, truncated) = found.await?;
    let results = found.into_iter().map(FoundFile::from).collect();
    Ok(Json(FoundFiles { results, truncated }))
}
