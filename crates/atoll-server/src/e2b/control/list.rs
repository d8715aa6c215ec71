//! Sandbox lists with E2B's filters.

use std::collections::BTreeMap;

use atoll_core::{RequestContext, SandboxView};
use atoll_model::SandboxState;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;

use super::responses::{ListedSandbox, e2b_state};
use crate::AppState;
use crate::e2b::error::{E2bAuth, E2bError, E2bResult};
use crate::e2b::lenient::LenientQuery;

type Page = (HeaderMap, Json<Vec<ListedSandbox>>);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListQuery {
    metadata: Option<String>,
    state: Option<String>,
    order: Option<String>,
    started_after: Option<String>,
    template: Option<String>,
    limit: Option<u32>,
    next_token: Option<String>,
}

fn invalid(message: impl Into<String>) -> E2bError {
    E2bError::new(StatusCode::BAD_REQUEST, message)
}

/// Parses the metadata filter, whose names and values are URL-encoded twice.
fn metadata(text: &str) -> E2bResult<BTreeMap<String, String>> {
    let pairs: Vec<(String, String)> =
        serde_urlencoded::from_str(text).map_err(|_| invalid("metadata is not a query string"))?;
    let once_more = |text: String| {
        let decoded: Result<Vec<(String, String)>, _> =
            serde_urlencoded::from_str(&format!("x={}", text.replace('+', "%2B")));
        let decoded = decoded.ok().and_then(|mut pairs| pairs.pop());
        decoded.map_or(text, |(_, value)| value)
    };
    let pairs = pairs.into_iter();
    Ok(pairs
        .map(|(name, value)| (once_more(name), once_more(value)))
        .collect())
}

/// Start time and id: the order of lists.
fn started(view: &SandboxView) -> (i64, &str) {
    let row = &view.row;
    (row.started_at.unwrap_or(row.created_at), row.id.as_str())
}

impl ListQuery {
    fn states(&self) -> E2bResult<Vec<&str>> {
        let Some(states) = &self.state else {
            return Ok(vec!["running", "paused"]);
        };
        let states: Vec<&str> = states.split(',').filter(|word| !word.is_empty()).collect();
        match states
            .iter()
            .find(|state| !["running", "paused"].contains(state))
        {
            Some(other) => Err(invalid(format!("{other:?} is neither running nor paused"))),
            None => Ok(states),
        }
    }

    fn started_after(&self) -> E2bResult<Option<i64>> {
        let time = self.started_after.as_ref().map(|text| {
            let time: Result<jiff::Timestamp, _> = text.parse();
            time.map(jiff::Timestamp::as_microsecond)
                .map_err(|_| invalid(format!("startedAfter: {text:?} is not a time")))
        });
        time.transpose()
    }

    /// Parses the cursor.
    fn after(&self) -> E2bResult<Option<(i64, String)>> {
        let token = self.next_token.as_ref().filter(|token| !token.is_empty());
        let parsed = token.map(|token| {
            let parts = token.split_once('.');
            let parsed = parts.and_then(|(time, id)| Some((time.parse().ok()?, id.to_owned())));
            parsed.ok_or_else(|| invalid("nextToken is invalid"))
        });
        parsed.transpose()
    }
}

/// All sandboxes that match the filters.
fn matching(
    app: &AppState,
    caller: &RequestContext,
    query: &ListQuery,
) -> E2bResult<Vec<SandboxView>> {
    if query
        .template
        .as_ref()
        .is_some_and(|name| name.contains(':'))
    {
        return Err(invalid("template: give it without a tag"));
    }
    let (states, since) = (query.states()?, query.started_after()?);
    let wanted = query.metadata.as_deref().map(metadata).transpose()?;
    let wanted = wanted.unwrap_or_default();
    let all = app.core.list_active(caller)?.into_iter();
    let fits = |view: &SandboxView| {
        let row = &view.row;
        row.state != SandboxState::Failed
            && states.contains(&e2b_state(row.state))
            && since.is_none_or(|since| started(view).0 >= since)
            && query
                .template
                .as_ref()
                .is_none_or(|name| *name == row.template)
            && wanted
                .iter()
                .all(|(name, value)| row.metadata.get(name) == Some(value))
    };
    Ok(all.filter(fits).collect())
}

fn page(app: &AppState, caller: &RequestContext, query: &ListQuery) -> E2bResult<Page> {
    let limit = query.limit.unwrap_or(100);
    if !(1..=100).contains(&limit) {
        return Err(invalid("limit: give 1 to 100"));
    }
    let ascending = match query.order.as_deref() {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(other) => return Err(invalid(format!("order: {other:?} is neither asc nor desc"))),
    };
    let mut found = matching(app, caller, query)?;
    let running = found
        .iter()
        .filter(|view| e2b_state(view.row.state) == "running");
    let running = running.count();
    found.sort_by(|one, two| started(one).cmp(&started(two)));
    if !ascending {
        found.reverse();
    }
    if let Some((time, id)) = query.after()? {
        found.retain(|view| {
            let after = started(view).cmp(&(time, &id));
            if ascending {
                after.is_gt()
            } else {
                after.is_lt()
            }
        });
    }
    let mut headers = HeaderMap::new();
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    // Not on the last page: clients would request an empty page.
    if let Some(last) = found.last().filter(|_| more) {
        let (time, id) = started(last);
        if let Ok(token) = HeaderValue::from_str(&format!("{time}.{id}")) {
            headers.insert("x-next-token", token);
        }
    }
    if query.states()?.contains(&"running") {
        headers.insert("x-total-running", HeaderValue::from(running));
    }
    Ok((
        headers,
        Json(found.iter().map(ListedSandbox::from).collect()),
    ))
}

pub(super) async fn all(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    LenientQuery(query): LenientQuery<ListQuery>,
) -> E2bResult<Page> {
    page(&app, &caller, &query)
}

/// Version 1: running sandboxes only.
pub(super) async fn running(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    LenientQuery(query): LenientQuery<ListQuery>,
) -> E2bResult<Page> {
    let query = ListQuery {
        state: Some("running".into()),
        ..query
    };
    page(&app, &caller, &query)
}
