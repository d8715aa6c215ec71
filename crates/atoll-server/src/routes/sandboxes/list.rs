//! Sandbox lists and their filters.

use std::collections::BTreeMap;

use atoll_core::SandboxFilter;
use atoll_model::{Error, SandboxState};
use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::AppState;
use crate::api_types::Sandbox;
use crate::auth::Authenticated;
use crate::error::{ApiError, ApiResult};
use crate::extract::with_query;
use crate::malformed::read_query;
use crate::pagination::{self, PageResponse};

/// Maximum length of `q`.
const MAX_SEARCH_CHARS: usize = 100;

/// Prefix of metadata parameters.
const METADATA_PREFIX: &str = "metadata.";

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListSandboxesQuery {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the previous page.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
    /// Only sandboxes in this state; `error` is an alias of `failed`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    state: Option<String>,
    /// Alias of `state`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    status: Option<String>,
    /// Only sandboxes created from this template.
    template: Option<String>,
    /// Only sandboxes whose id or alias contains this text, case-insensitively.
    #[param(max_length = 100)]
    q: Option<String>,
}

/// The metadata filter, for OpenAPI.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "the description of what `Filters` reads")]
struct MetadataFilter {
    /// Only sandboxes whose metadata has this value. Replace `key` by a metadata key; each key may
    /// occur once.
    #[param(rename = "metadata.key")]
    metadata: Option<String>,
}

/// Query of a list, with the metadata filter, whose parameter names are not fixed.
pub(super) struct SandboxFilters {
    query: ListSandboxesQuery,
    metadata: BTreeMap<String, String>,
}

impl<S: Send + Sync> FromRequestParts<S> for SandboxFilters {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let (rest, metadata) = split_metadata(&parts.uri)?;
        let query = read_query(&rest)?;
        Ok(Self { query, metadata })
    }
}

/// Splits the metadata filter from the query.
fn split_metadata(uri: &Uri) -> Result<(Uri, BTreeMap<String, String>), Error> {
    let (mut rest, mut metadata) = (Vec::new(), BTreeMap::new());
    for pair in uri.query().unwrap_or_default().split('&') {
        let decoded = form_urlencoded::parse(pair.as_bytes()).next();
        let Some((name, value)) = decoded else {
            continue;
        };
        let Some(key) = name.strip_prefix(METADATA_PREFIX) else {
            rest.push(pair);
            continue;
        };
        if metadata
            .insert(key.to_owned(), value.into_owned())
            .is_some()
        {
            let message = format!("{name}: expected one value, got several");
            return Err(Error::invalid(
                &name,
                message,
                "give each key of the metadata once",
            ));
        }
    }
    Ok((with_query(uri, &rest), metadata))
}

/// The state given by either parameter.
pub(in crate::routes) fn read_states(
    state: Option<&str>,
    status: Option<&str>,
) -> Result<Option<SandboxState>, Error> {
    let state = read_state("state", state)?;
    let status = read_state("status", status)?;
    if let (Some(state), Some(status)) = (state, status)
        && state != status
    {
        let message = "state and status differ";
        return Err(Error::invalid("status", message, "give state alone"));
    }
    Ok(state.or(status))
}

/// Parses a state; `failed` has two spellings.
fn read_state(field: &str, word: Option<&str>) -> Result<Option<SandboxState>, Error> {
    let Some(word) = word else { return Ok(None) };
    let spelled = |state: &SandboxState| {
        state.name() == word || (word == "error" && *state == SandboxState::Failed)
    };
    let found = SandboxState::ALL.into_iter().find(spelled);
    found.map(Some).ok_or_else(|| {
        let known = SandboxState::ALL.map(SandboxState::name).join(", ");
        let message = format!("{field}: expected a state, got {word:?}");
        Error::invalid(field, message, format!("use one of {known}"))
    })
}

impl SandboxFilters {
    fn filter(self) -> Result<SandboxFilter, Error> {
        let ListSandboxesQuery {
            state,
            status,
            template,
            q,
            ..
        } = self.query;
        if q.as_ref()
            .is_some_and(|text| text.chars().count() > MAX_SEARCH_CHARS)
        {
            let message = format!("q: expected at most {MAX_SEARCH_CHARS} characters, got more");
            return Err(Error::invalid("q", message, "search for a shorter text"));
        }
        Ok(SandboxFilter {
            state: read_states(state.as_deref(), status.as_deref())?,
            template,
            metadata: self.metadata,
            text: q,
        })
    }
}

/// List sandboxes
///
/// Newest first, without deleted ones. All filters must match. `X-Total-Count` is the number of
/// matches on all pages.
#[utoipa::path(get, path = "/sandboxes", params(ListSandboxesQuery, MetadataFilter),
    responses((status = 200, body = [Sandbox], headers(("X-Total-Count" = u64, description = "Matches on all pages")))))]
pub(super) async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    filters: SandboxFilters,
) -> ApiResult<PageResponse<Sandbox>> {
    let request = &filters.query;
    let page = pagination::parse_page(request.limit, request.cursor.as_ref())?;
    let found = app
        .core
        .list_sandboxes(&caller, &filters.filter()?, &page)?;
    let page = found.page.map(|view| app.sandbox(view));
    let (mut headers, items): (HeaderMap, Json<_>) = pagination::page_response(page);
    headers.insert("x-total-count", HeaderValue::from(found.total));
    Ok((headers, items))
}
