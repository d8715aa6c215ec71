//! Tickets: one-time credentials for URLs, as `?ticket=` instead of a key.

use atoll_core::CreatedTicket;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Created, created};
use crate::AppState;
use crate::api_types::Time;
use crate::auth::Authenticated;
use crate::extract::JsonBody;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(ticket))
}

/// Request for a ticket; it has no fields.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewTicket)]
#[serde(deny_unknown_fields)]
struct CreateTicket {}

/// A ticket.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Ticket {
    /// The secret; returned once.
    ticket: String,
    expires_at: Time,
}

impl From<CreatedTicket> for Ticket {
    fn from(made: CreatedTicket) -> Self {
        Self {
            ticket: made.secret,
            expires_at: Time::new(made.expires_at),
        }
    }
}

/// Create a ticket
///
/// For browser requests that cannot set headers: `?ticket=` replaces the key once, within 30
/// seconds.
#[utoipa::path(post, path = "/tickets", request_body = CreateTicket, responses((status = 201, body = Ticket)))]
async fn ticket(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    JsonBody(CreateTicket {}): JsonBody<CreateTicket>,
) -> Created<Ticket> {
    Ok(created(app.core.create_ticket(&caller)?))
}
