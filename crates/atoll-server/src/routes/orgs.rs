//! Orgs: made and changed by an admin.

use atoll_core::OrgRequest;
use atoll_model::{Org, OrgId};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Made, made};
use crate::App;
use crate::error::Answer;
use crate::extract::{Body, Path, Query, present};
use crate::middleware::Caller;
use crate::pagination::{self, Asked, Part};
use crate::api_types::Time;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, make))
        .routes(routes!(read, change))
}

/// An org.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Org)]
#[serde(rename_all = "camelCase")]
struct OrgView {
    #[serde(rename = "orgID")]
    id: OrgId,
    name: String,
    /// At once; `null` is as many as the machine holds.
    max_sandboxes: Option<u32>,
    /// The longest lifetime in seconds; `null` is no end.
    max_timeout: Option<u32>,
    created_at: Time,
}

impl From<Org> for OrgView {
    fn from(org: Org) -> Self {
        Self {
            id: org.id,
            name: org.name,
            max_sandboxes: org.max_sandboxes,
            max_timeout: org.max_timeout,
            created_at: Time::new(org.created_at),
        }
    }
}

/// An org that is to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewOrg)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct New {
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    name: String,
    /// At once; `null` is as many as the machine holds.
    #[serde(default, deserialize_with = "present")]
    #[schema(maximum = 4_294_967_295_i64, default = 5)]
    max_sandboxes: Option<Option<u32>>,
    /// The longest lifetime in seconds; `null` is no end.
    #[serde(default, deserialize_with = "present")]
    #[schema(minimum = 1, maximum = 4_294_967_295_i64, default = 3600)]
    max_timeout: Option<Option<u32>>,
}

/// What of an org changes: what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OrgChange, example = json!({"maxSandboxes": 50}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Change {
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    name: Option<String>,
    /// At once; `null` is as many as the machine holds.
    #[serde(default, deserialize_with = "present")]
    #[schema(maximum = 4_294_967_295_i64)]
    max_sandboxes: Option<Option<u32>>,
    /// The longest lifetime in seconds; `null` is no end.
    #[serde(default, deserialize_with = "present")]
    #[schema(minimum = 1, maximum = 4_294_967_295_i64)]
    max_timeout: Option<Option<u32>>,
}

/// Make an org
#[utoipa::path(post, path = "/orgs", request_body = New, responses((status = 201, body = OrgView)))]
async fn make(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(asked): Body<New>,
) -> Made<OrgView> {
    let asked = OrgRequest {
        name: Some(asked.name),
        max_sandboxes: asked.max_sandboxes,
        max_timeout: asked.max_timeout,
    };
    Ok(made(app.core.make_org(&caller, asked).await?))
}

/// List orgs
///
/// All of them for an admin, newest first; the caller's own for others.
#[utoipa::path(get, path = "/orgs", params(Asked), responses((status = 200, body = [OrgView])))]
async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<Asked>,
) -> Answer<Part<OrgView>> {
    let orgs = app.core.orgs(&caller, &asked.page()?).await?;
    Ok(pagination::part(orgs))
}

/// Get an org
#[utoipa::path(get, path = "/orgs/{id}", responses((status = 200, body = OrgView)))]
async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<OrgView>> {
    Ok(Json(app.core.org(&caller, &id).await?.into()))
}

/// Change an org
#[utoipa::path(patch, path = "/orgs/{id}", request_body = Change, responses((status = 200, body = OrgView)))]
async fn change(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Change>,
) -> Answer<Json<OrgView>> {
    let asked = OrgRequest {
        name: asked.name,
        max_sandboxes: asked.max_sandboxes,
        max_timeout: asked.max_timeout,
    };
    let changed = app.core.change_org(&caller, &id, asked).await?;
    Ok(Json(changed.into()))
}
