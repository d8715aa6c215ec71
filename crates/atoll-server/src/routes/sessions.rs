//! The history of sandboxes, which outlives them: what was run in each, and what happened to it.

use atoll_core::{CommandKind, Context, SandboxView, SessionView};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::events::{self, EventView};
use super::sandboxes::read_states;
use crate::App;
use crate::error::Answer;
use crate::extract::{Path, Query};
use crate::middleware::Caller;
use crate::pagination::{self, Part};
use crate::api_types::{CommandHistory, Sandbox};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(read))
        .routes(routes!(commands))
        .routes(routes!(terminals))
        .routes(routes!(happened))
}

/// A session: a sandbox, and how much there is of its history.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Session {
    #[serde(flatten)]
    sandbox: Sandbox,
    command_count: i64,
    terminal_count: i64,
}

impl From<SessionView> for Session {
    fn from(view: SessionView) -> Self {
        Self {
            sandbox: SandboxView::from(view.row).into(),
            command_count: view.commands,
            terminal_count: view.terminals,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Sessions {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the page before.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
    /// Only sandboxes in this state; `error` is `failed`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    state: Option<String>,
    /// The same as `state`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    status: Option<String>,
}

/// List sessions
///
/// Of all sandboxes that ever were, newest first.
#[utoipa::path(get, path = "/sessions", params(Sessions),
    responses((status = 200, body = [Sandbox])))]
async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<Sessions>,
) -> Answer<Part<Sandbox>> {
    let page = pagination::asked(asked.limit, asked.cursor.as_ref())?;
    let state = read_states(asked.state.as_deref(), asked.status.as_deref())?;
    Ok(pagination::part(
        app.core.list_sessions(&caller, state, &page).await?,
    ))
}

/// Get a session
#[utoipa::path(get, path = "/sessions/{id}", responses((status = 200, body = Session)))]
async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Session>> {
    Ok(Json(app.core.session(&caller, &id).await?.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Listed {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the page before.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
}

impl Listed {
    async fn answer(
        &self,
        app: &App,
        caller: &Context,
        id: &str,
        kind: CommandKind,
    ) -> Answer<Part<CommandHistory>> {
        let page = pagination::asked(self.limit, self.cursor.as_ref())?;
        let commands = app.core.session_commands(caller, id, kind, &page);
        Ok(pagination::part(commands.await?))
    }
}

/// List commands of a session
///
/// Newest first; their output is not kept.
#[utoipa::path(get, path = "/sessions/{id}/commands", params(Listed),
    responses((status = 200, body = [CommandHistory])))]
async fn commands(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Listed>,
) -> Answer<Part<CommandHistory>> {
    asked.answer(&app, &caller, &id, CommandKind::Plain).await
}

/// List terminals of a session
///
/// Newest first.
#[utoipa::path(get, path = "/sessions/{id}/terminals", params(Listed),
    responses((status = 200, body = [CommandHistory])))]
async fn terminals(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Listed>,
) -> Answer<Part<CommandHistory>> {
    let kind = CommandKind::Terminal;
    asked.answer(&app, &caller, &id, kind).await
}

/// List events of a session
///
/// What happened to the sandbox.
#[utoipa::path(get, path = "/sessions/{id}/events", operation_id = "events", params(events::Listed),
    responses((status = 200, body = [EventView])))]
async fn happened(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<events::Listed>,
) -> Answer<Json<Vec<EventView>>> {
    let limit = pagination::limit(asked.limit)?;
    let events = app
        .core
        .session_events(&caller, &id, asked.after, limit)
        .await?;
    Ok(Json(events.into_iter().map(EventView::from).collect()))
}
