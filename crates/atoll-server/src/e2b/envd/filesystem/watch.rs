//! Directory watches: as a stream (`WatchDir`), or with a watcher that is polled.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_core::{SandboxAccess, SandboxRef, WatchSpec};
use atoll_model::runtime::FileWatch;
use atoll_model::{Error, WatchEvent, WatchOptions};
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entry::EntryInfo;
use super::to_e2b_error;
use crate::AppState;
use crate::e2b::connect_rpc::{self, ConnectError, Envelope, RequestStream, Unary};
use crate::e2b::envd::files::ATTRIBUTE_PREFIX;
use crate::e2b::envd::process::keepalive;
use crate::e2b::envd::target::{FileTarget, clean_path};
use crate::serve::Connection;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/filesystem.Filesystem/WatchDir", post(watch_dir))
        .route("/filesystem.Filesystem/CreateWatcher", post(create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(remove))
}

/// Request for a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default, alias = "include_entry")]
    include_entry: bool,
    /// Ignored: sandboxes have no network mounts.
    #[serde(default, alias = "allow_network_mounts", rename = "allowNetworkMounts")]
    _allow_network_mounts: Option<bool>,
}

impl WatchRequest {
    fn watch_spec(&self, target: &FileTarget) -> WatchSpec {
        WatchSpec {
            run_as: target.run_as.clone(),
            path: clean_path(&self.path).into_bytes(),
            options: WatchOptions {
                recursive: self.recursive,
                ..WatchOptions::default()
            },
            with_entries: self.include_entry,
        }
    }
}

/// A file system event in E2B's form.
#[derive(Debug, Serialize)]
struct Event {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

/// Event types and paths, as inotify reports them: a rename is two events.
fn event_types(event: &WatchEvent) -> Result<Vec<(&'static str, &[u8])>, ConnectError> {
    Ok(match event {
        WatchEvent::Create { path, .. } => vec![("CREATE", path)],
        WatchEvent::Write { path } => vec![("WRITE", path)],
        WatchEvent::Remove {
            path,
            moved_away: false,
        } => vec![("REMOVE", path)],
        // Moved out of the watched directory.
        WatchEvent::Remove {
            path,
            moved_away: true,
        } => vec![("RENAME", path)],
        WatchEvent::Rename { from, to } => vec![("RENAME", from), ("CREATE", to)],
        WatchEvent::Chmod { path } => vec![("CHMOD", path)],
        WatchEvent::End => vec![("REMOVE", b"")],
        WatchEvent::Overflow => {
            return Err(ConnectError::new(
                "internal",
                "events were lost: list the directory and watch it again",
            ));
        }
        WatchEvent::Limit => {
            return Err(ConnectError::new(
                "failed_precondition",
                "too many directories to watch: watch fewer",
            ));
        }
    })
}

/// Converts an event, with metadata if requested.
async fn to_events(
    access: &SandboxAccess,
    spec: &WatchSpec,
    event: &WatchEvent,
) -> Result<Vec<Event>, ConnectError> {
    let mut events = Vec::new();
    for (kind, path) in event_types(event)? {
        let wanted = spec.with_entries && matches!(kind, "CREATE" | "WRITE" | "CHMOD");
        let full = [&spec.path, b"/".as_slice(), path].concat();
        let described = if wanted {
            let runtime = access.runtime();
            let described = runtime.describe(access.id(), &spec.run_as, &full, ATTRIBUTE_PREFIX);
            // The file may be gone already.
            described.await.ok()
        } else {
            None
        };
        events.push(Event {
            name: match path {
                b"" => ".".to_owned(),
                path => String::from_utf8_lossy(path).into_owned(),
            },
            kind: match kind {
                "CREATE" => "EVENT_TYPE_CREATE",
                "WRITE" => "EVENT_TYPE_WRITE",
                "REMOVE" => "EVENT_TYPE_REMOVE",
                "RENAME" => "EVENT_TYPE_RENAME",
                _ => "EVENT_TYPE_CHMOD",
            },
            entry: described.map(EntryInfo::from),
        });
    }
    Ok(events)
}

/// Errors before the first message are sent as a stream too.
async fn watch_dir(
    target: Result<FileTarget, ConnectError>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let begun = async {
        let request: WatchRequest = RequestStream::new(body).only().await?;
        let target = target?;
        let spec = request.watch_spec(&target);
        let access = target.access;
        let (runtime, options) = (access.runtime(), spec.options);
        let watch = runtime.watch(access.id(), &spec.run_as, &spec.path, options);
        let to_error = |error: Error| to_e2b_error(error, &spec.run_as);
        let watch = watch.await.map_err(to_error)?;
        Ok::<_, ConnectError>(State {
            access,
            connection,
            spec,
            watch,
            waiting: VecDeque::from([connect_rpc::message(&json!({ "start": {} }))]),
            keepalive: keepalive(&headers),
            ended: false,
        })
    };
    match begun.await {
        Ok(state) => connect_rpc::stream(futures_util::stream::unfold(state, |mut state| async {
            let envelope = state.next().await?;
            Some((envelope, state))
        })),
        Err(error) => error.stream(),
    }
}

/// State of a watch stream.
struct State {
    access: SandboxAccess,
    connection: Connection,
    spec: WatchSpec,
    watch: Box<dyn FileWatch>,
    /// Envelopes to send.
    waiting: VecDeque<Bytes>,
    keepalive: Duration,
    ended: bool,
}

impl State {
    async fn next(&mut self) -> Option<Envelope> {
        loop {
            if let Some(envelope) = self.waiting.pop_front() {
                return Some(Ok(envelope));
            }
            if self.ended {
                return None;
            }
            match tokio::time::timeout(self.keepalive, self.watch.next()).await {
                Err(_) => return Some(Ok(connect_rpc::message(&json!({ "keepalive": {} })))),
                Ok(Ok(Some(event))) => self.push_event(&event).await,
                // The sandbox has ended.
                Ok(Ok(None) | Err(_)) if self.access.has_ended().await => {
                    self.ended = true;
                    return Some(connect_rpc::end_with(&self.access, &self.connection).await);
                }
                Ok(Ok(None)) => self.end(connect_rpc::end_of_stream()),
                Ok(Err(error)) => self.end(ConnectError::from(error).envelope()),
            }
        }
    }

    async fn push_event(&mut self, event: &WatchEvent) {
        match to_events(&self.access, &self.spec, event).await {
            Ok(events) => self.waiting.extend(
                events
                    .iter()
                    .map(|event| connect_rpc::message(&json!({ "filesystem": event }))),
            ),
            Err(error) => self.end(error.envelope()),
        }
    }

    fn end(&mut self, envelope: Bytes) {
        self.waiting.push_back(envelope);
        self.ended = true;
    }
}

async fn create(
    target: FileTarget,
    Unary(request): Unary<WatchRequest>,
) -> Result<Json<Value>, ConnectError> {
    let created = target
        .access
        .create_watcher(request.watch_spec(&target))
        .await;
    let id = created.map_err(|error| to_e2b_error(error, &target.run_as))?;
    Ok(Json(json!({ "watcherId": id })))
}

/// Request about an existing watcher.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatcherRequest {
    #[serde(default, alias = "watcher_id")]
    watcher_id: String,
}

async fn events(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<WatcherRequest>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let (spec, changes) = access.poll_watcher(&request.watcher_id).await?;
    let mut events = Vec::new();
    for event in &changes {
        events.extend(to_events(&access, &spec, event).await?);
    }
    Ok(Json(json!({ "events": events })))
}

async fn remove(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<WatcherRequest>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    access.remove_watcher(&request.watcher_id)?;
    Ok(Json(json!({})))
}
