//! Directory watches as server-sent events. The watch is active before the response begins.

use atoll_core::SandboxAccess;
use atoll_model::{SandboxState, WatchEvent, WatchOptions};
use axum::body::Bytes;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::target::{FileTarget, RunAsQuery};
use crate::error::ApiResult;
use crate::extract::Query;
use crate::sse;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchQuery {
    /// Directory to watch.
    #[param(min_length = 1)]
    path: String,
    /// Watch subdirectories too.
    #[serde(default)]
    recursive: bool,
}

/// Watch a directory
///
/// Server-sent events `create`, `write`, `remove`, `rename` and `chmod`, each with a `path`;
/// `overflow` and `limit` if events are lost; `end` with a `reason`; and `ping`.
#[utoipa::path(get, path = "/sandboxes/{id}/files/watch", params(WatchQuery, RunAsQuery),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(super) async fn watch(
    target: FileTarget,
    Query(query): Query<WatchQuery>,
) -> ApiResult<Response> {
    let FileTarget { access, run_as } = target;
    let options = WatchOptions {
        recursive: query.recursive,
        ..WatchOptions::default()
    };
    let (runtime, path) = (access.runtime(), query.path.as_bytes());
    let watch = runtime.watch(access.id(), &run_as, path, options).await?;
    let state = Some((access, watch));
    let events = futures_util::stream::unfold(state, |state| async {
        let (access, mut watch) = state?;
        let (text, ended) = match tokio::time::timeout(sse::PING_INTERVAL, watch.next()).await {
            Err(_) => (sse::PING_EVENT.to_owned(), false),
            Ok(Ok(Some(watch_event))) => (event(&watch_event), watch_event == WatchEvent::End),
            Ok(Ok(None)) => return None,
            // The helper process ended with the sandbox.
            Ok(Err(_)) if !is_running(&access).await => (end("stopped"), true),
            Ok(Err(error)) => (sse::error_event(&error), true),
        };
        let next = (!ended).then_some((access, watch));
        Some((Bytes::from(text), next))
    });
    Ok(sse::sse_response(events))
}

async fn is_running(access: &SandboxAccess) -> bool {
    let info = access.runtime().get(access.id()).await;
    info.is_ok_and(|info| info.state == SandboxState::Running)
}

fn event(watch_event: &WatchEvent) -> String {
    let text = |path: &[u8]| Value::from(String::from_utf8_lossy(path));
    let (name, body) = match watch_event {
        WatchEvent::Create { path, directory } => {
            ("create", json!({ "path": text(path), "isDir": directory }))
        }
        WatchEvent::Write { path } => ("write", json!({ "path": text(path) })),
        WatchEvent::Remove { path, .. } => ("remove", json!({ "path": text(path) })),
        WatchEvent::Rename { from, to } => {
            ("rename", json!({ "from": text(from), "path": text(to) }))
        }
        WatchEvent::Chmod { path } => ("chmod", json!({ "path": text(path) })),
        WatchEvent::Overflow => ("overflow", json!({})),
        WatchEvent::Limit => ("limit", json!({})),
        WatchEvent::End => return end("removed"),
    };
    format!("event: {name}\ndata: {body}\n\n")
}

/// The last event, with the reason.
fn end(reason: &str) -> String {
    format!("event: end\ndata: {}\n\n", json!({ "reason": reason }))
}
