//! Tickets: `?ticket=` instead of a key, once.

use atoll_core::MadeTicket;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Made, made};
use crate::App;
use crate::extract::Body;
use crate::middleware::Caller;
use crate::api_types::Time;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(ticket))
}

/// There is nothing to say about one.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewTicket)]
#[serde(deny_unknown_fields)]
struct New {}

/// A ticket.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Ticket {
    /// The secret: told once.
    ticket: String,
    expires_at: Time,
}

impl From<MadeTicket> for Ticket {
    fn from(made: MadeTicket) -> Self {
        Self {
            ticket: made.secret,
            expires_at: Time::new(made.expires_at),
        }
    }
}

/// Make a ticket
///
/// What a browser shows as `?ticket=` instead of a key, where it can send no headers: good once, within 30 seconds.
#[utoipa::path(post, path = "/tickets", request_body = New, responses((status = 201, body = Ticket)))]
async fn ticket(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(New {}): Body<New>,
) -> Made<Ticket> {
    Ok(made(app.core.make_ticket(&caller)?))
}
