//! Sessions: the history of sandboxes, which is kept after their deletion.

use atoll_core::{RequestContext, SandboxView, SessionView};
use atoll_model::CommandKind;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::events::{self, EventView};
use super::sandboxes::read_states;
use crate::AppState;
use crate::api_types::{CommandHistory, Sandbox};
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{Path, Query};
use crate::pagination::{self, PageResponse};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(read))
        .routes(routes!(commands))
        .routes(routes!(terminals))
        .routes(routes!(list_events))
}

/// A session: a sandbox and the size of its history.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Session {
    #[serde(flatten)]
    sandbox: Sandbox,
    command_count: i64,
    terminal_count: i64,
}

impl Session {
    fn new(app: &AppState, view: SessionView) -> Self {
        Self {
            sandbox: app.sandbox(SandboxView::from(view.row)),
            command_count: view.commands,
            terminal_count: view.terminals,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListSessionsQuery {
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
}

/// List sessions
///
/// Sessions of all sandboxes, including deleted ones, newest first.
#[utoipa::path(get, path = "/sessions", params(ListSessionsQuery),
    responses((status = 200, body = [Sandbox])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Query(query): Query<ListSessionsQuery>,
) -> ApiResult<PageResponse<Sandbox>> {
    let page = pagination::parse_page(query.limit, query.cursor.as_ref())?;
    let state = read_states(query.state.as_deref(), query.status.as_deref())?;
    let sessions = app.core.list_sessions(&caller, state, &page).await?;
    let sessions = sessions.map(|view| app.sandbox(view));
    Ok(pagination::page_response(sessions))
}

/// Get a session
#[utoipa::path(get, path = "/sessions/{id}", responses((status = 200, body = Session)))]
async fn read(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<Json<Session>> {
    let session = app.core.session(&caller, &id).await?;
    Ok(Json(Session::new(&app, session)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionCommandsQuery {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the previous page.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
}

impl SessionCommandsQuery {
    async fn respond(
        &self,
        app: &AppState,
        caller: &RequestContext,
        id: &str,
        kind: CommandKind,
    ) -> ApiResult<PageResponse<CommandHistory>> {
        let page = pagination::parse_page(self.limit, self.cursor.as_ref())?;
        let commands = app.core.session_commands(caller, id, kind, &page);
        Ok(pagination::page_response(commands.await?))
    }
}

/// List commands of a session
///
/// Newest first, without their output.
#[utoipa::path(get, path = "/sessions/{id}/commands", params(SessionCommandsQuery),
    responses((status = 200, body = [CommandHistory])))]
async fn commands(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<SessionCommandsQuery>,
) -> ApiResult<PageResponse<CommandHistory>> {
    query
        .respond(&app, &caller, &id, CommandKind::Command)
        .await
}

/// List terminals of a session
///
/// Newest first.
#[utoipa::path(get, path = "/sessions/{id}/terminals", params(SessionCommandsQuery),
    responses((status = 200, body = [CommandHistory])))]
async fn terminals(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<SessionCommandsQuery>,
) -> ApiResult<PageResponse<CommandHistory>> {
    let kind = CommandKind::Terminal;
    query.respond(&app, &caller, &id, kind).await
}

/// List events of a session
///
/// Events of its sandbox, oldest first.
#[utoipa::path(get, path = "/sessions/{id}/events", operation_id = "events", params(events::ListEventsQuery),
    responses((status = 200, body = [EventView])))]
async fn list_events(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<events::ListEventsQuery>,
) -> ApiResult<Json<Vec<EventView>>> {
    let limit = pagination::parse_limit(query.limit)?;
    let events = app
        .core
        .session_events(&caller, &id, query.after, limit)
        .await?;
    Ok(Json(events.into_iter().map(EventView::from).collect()))
}
