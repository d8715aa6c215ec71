//! The history of sandboxes, which outlives them: what was run in each, and what happened to it.

use atoll_core::{CommandKind, Which};
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;

use super::{events, sandboxes};
use crate::App;
use crate::answer::Answer;
use crate::body::Query;
use crate::guard::Caller;
use crate::page::{self, Part};
use crate::views::{EventView, PastCommand, Sandbox, Session};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sessions", get(list))
        .route("/sessions/{id}", get(read))
        .route("/sessions/{id}/commands", get(commands))
        .route("/sessions/{id}/terminals", get(terminals))
        .route("/sessions/{id}/events", get(happened))
}

async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<sandboxes::Listed>,
) -> Answer<Part<Sandbox>> {
    asked.answer(&app, &caller, Which::Ever).await
}

async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Session>> {
    Ok(Json(app.core.session(&caller, &id).await?.into()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    limit: Option<u32>,
    cursor: Option<String>,
}

impl Listed {
    async fn answer(
        &self,
        app: &App,
        caller: &atoll_core::Context,
        id: &str,
        kind: CommandKind,
    ) -> Answer<Part<PastCommand>> {
        let page = page::asked(self.limit, self.cursor.as_ref())?;
        let commands = app.core.session_commands(caller, id, kind, &page);
        Ok(page::part(commands.await?))
    }
}

async fn commands(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Listed>,
) -> Answer<Part<PastCommand>> {
    asked.answer(&app, &caller, &id, CommandKind::Plain).await
}

async fn terminals(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Listed>,
) -> Answer<Part<PastCommand>> {
    let kind = CommandKind::Terminal;
    asked.answer(&app, &caller, &id, kind).await
}

async fn happened(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<events::Listed>,
) -> Answer<Json<Vec<EventView>>> {
    let limit = page::limit(asked.limit)?;
    let events = app
        .core
        .session_events(&caller, &id, asked.after, limit)
        .await?;
    Ok(Json(events.into_iter().map(EventView::from).collect()))
}
