//! Watches: told as a stream, or kept and asked for.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_core::{Doorstep, Use, Watched};
use atoll_model::{Error, WatchEvent, WatchOptions};
use atoll_worker::Watch;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entry::EntryInfo;
use super::in_their_words;
use crate::App;
use crate::e2b::connect_rpc::{self, Call, Envelope, Fault, Unary};
use crate::e2b::envd::files::PREFIX;
use crate::e2b::envd::target::{Place, clean};
use crate::e2b::envd::process::keepalive;
use crate::serve::Connection;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/filesystem.Filesystem/WatchDir", post(watch_dir))
        .route("/filesystem.Filesystem/CreateWatcher", post(create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(remove))
}

/// What is to be watched.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default, alias = "include_entry")]
    include_entry: bool,
    /// No matter: sandboxes have no such file systems.
    #[serde(default, alias = "allow_network_mounts", rename = "allowNetworkMounts")]
    _allow_network_mounts: Option<bool>,
}

impl Asked {
    fn watched(&self, place: &Place) -> Watched {
        Watched {
            who: place.who.clone(),
            path: clean(&self.path).into_bytes(),
            options: WatchOptions {
                recursive: self.recursive,
                ..WatchOptions::default()
            },
            with_entries: self.include_entry,
        }
    }
}

/// One thing that happened, as E2B's clients are told it.
#[derive(Debug, Serialize)]
struct Event {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

/// What happened, in their words, which are the kernel's: a rename is told as two things.
fn told(event: &WatchEvent) -> Result<Vec<(&'static str, &[u8])>, Fault> {
    Ok(match event {
        WatchEvent::Create { path, .. } => vec![("CREATE", path)],
        WatchEvent::Write { path } => vec![("WRITE", path)],
        WatchEvent::Remove { path, away: false } => vec![("REMOVE", path)],
        // Half a rename: the other half is nowhere that is watched.
        WatchEvent::Remove { path, away: true } => vec![("RENAME", path)],
        WatchEvent::Rename { from, to } => vec![("RENAME", from), ("CREATE", to)],
        WatchEvent::Chmod { path } => vec![("CHMOD", path)],
        WatchEvent::End => vec![("REMOVE", b"")],
        WatchEvent::Overflow => {
            return Err(Fault::new(
                "internal",
                "more happened than could be told: list the directory and watch it again",
            ));
        }
        WatchEvent::Limit => {
            return Err(Fault::new(
                "failed_precondition",
                "there are more directories than can be watched: watch fewer",
            ));
        }
    })
}

/// All that is told of something that happened.
async fn describe(used: &Use, watched: &Watched, event: &WatchEvent) -> Result<Vec<Event>, Fault> {
    let mut events = Vec::new();
    for (kind, path) in told(event)? {
        let wanted = watched.with_entries && matches!(kind, "CREATE" | "WRITE" | "CHMOD");
        let full = [&watched.path, b"/".as_slice(), path].concat();
        let described = if wanted {
            let runtime = used.runtime();
            let described = runtime.describe(used.id(), &watched.who, &full, PREFIX);
            // It may have gone in the meantime.
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

/// A stream that never begins fails as one that has begun.
async fn watch_dir(
    place: Result<Place, Fault>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let begun = async {
        let asked: Asked = Call::new(body).only().await?;
        let place = place?;
        let watched = asked.watched(&place);
        let used = place.used;
        let (runtime, options) = (used.runtime(), watched.options);
        let watch = runtime.watch(used.id(), &watched.who, &watched.path, options);
        let fault = |error: Error| in_their_words(error, &watched.who);
        let watch = watch.await.map_err(fault)?;
        Ok::<_, Fault>(State {
            used,
            connection,
            watched,
            watch,
            waiting: VecDeque::from([connect_rpc::message(&json!({ "start": {} }))]),
            keepalive: keepalive(&headers),
            over: false,
        })
    };
    match begun.await {
        Ok(state) => connect_rpc::stream(futures_util::stream::unfold(state, |mut state| async {
            let envelope = state.next().await?;
            Some((envelope, state))
        })),
        Err(fault) => fault.stream(),
    }
}

/// A stream under way.
struct State {
    used: Use,
    connection: Connection,
    watched: Watched,
    watch: Watch,
    /// What is still to be sent.
    waiting: VecDeque<Bytes>,
    keepalive: Duration,
    over: bool,
}

impl State {
    async fn next(&mut self) -> Option<Envelope> {
        loop {
            if let Some(envelope) = self.waiting.pop_front() {
                return Some(Ok(envelope));
            }
            if self.over {
                return None;
            }
            match tokio::time::timeout(self.keepalive, self.watch.next()).await {
                Err(_) => return Some(Ok(connect_rpc::message(&json!({ "keepalive": {} })))),
                Ok(Ok(Some(event))) => self.happened(&event).await,
                // It ended with its sandbox.
                Ok(Ok(None) | Err(_)) if self.used.is_over() => {
                    self.over = true;
                    return Some(connect_rpc::end_with(&self.used, &self.connection).await);
                }
                Ok(Ok(None)) => self.end(connect_rpc::done()),
                Ok(Err(error)) => self.end(Fault::from(error).envelope()),
            }
        }
    }

    async fn happened(&mut self, event: &WatchEvent) {
        match describe(&self.used, &self.watched, event).await {
            Ok(events) => self.waiting.extend(
                events
                    .iter()
                    .map(|event| connect_rpc::message(&json!({ "filesystem": event }))),
            ),
            Err(fault) => self.end(fault.envelope()),
        }
    }

    fn end(&mut self, envelope: Bytes) {
        self.waiting.push_back(envelope);
        self.over = true;
    }
}

async fn create(place: Place, Unary(asked): Unary<Asked>) -> Result<Json<Value>, Fault> {
    let kept = place.used.keep_watch(asked.watched(&place)).await;
    let id = kept.map_err(|error| in_their_words(error, &place.who))?;
    Ok(Json(json!({ "watcherId": id })))
}

/// A watch that is kept.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    #[serde(default, alias = "watcher_id")]
    watcher_id: String,
}

async fn events(
    Extension(step): Extension<Doorstep>,
    Unary(asked): Unary<Kept>,
) -> Result<Json<Value>, Fault> {
    let used = step.enter().await?;
    let (watched, happened) = used.drain_watch(&asked.watcher_id).await?;
    let mut events = Vec::new();
    for event in &happened {
        events.extend(describe(&used, &watched, event).await?);
    }
    Ok(Json(json!({ "events": events })))
}

async fn remove(
    Extension(step): Extension<Doorstep>,
    Unary(asked): Unary<Kept>,
) -> Result<Json<Value>, Fault> {
    let used = step.enter().await?;
    used.end_watch(&asked.watcher_id)?;
    Ok(Json(json!({})))
}
