//! Orgs, managed by admins.

use atoll_core::OrgRequest;
use atoll_model::{Org, OrgId};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Created, created};
use crate::AppState;
use crate::api_types::Time;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{JsonBody, Path, Query, double_option};
use crate::pagination::{self, PageQuery, PageResponse};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, make))
        .routes(routes!(read, change, remove))
}

/// An org.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Org)]
#[serde(rename_all = "camelCase")]
struct OrgView {
    #[serde(rename = "orgID")]
    id: OrgId,
    name: String,
    /// Maximum number of sandboxes at the same time; `null`: no limit.
    max_sandboxes: Option<u32>,
    /// Maximum timeout in seconds; `null`: no limit.
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

/// Request to create an org.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewOrg)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateOrg {
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    name: String,
    /// Maximum number of sandboxes at the same time; `null`: no limit.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(maximum = 4_294_967_295_i64, default = 5)]
    max_sandboxes: Option<Option<u32>>,
    /// Maximum timeout in seconds; `null`: no limit.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(minimum = 1, maximum = 4_294_967_295_i64, default = 3600)]
    max_timeout: Option<Option<u32>>,
}

/// Changes of an org; omitted fields stay unchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OrgChange, example = json!({"maxSandboxes": 50}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateOrg {
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    name: Option<String>,
    /// Maximum number of sandboxes at the same time; `null`: no limit.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(maximum = 4_294_967_295_i64)]
    max_sandboxes: Option<Option<u32>>,
    /// Maximum timeout in seconds; `null`: no limit.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(minimum = 1, maximum = 4_294_967_295_i64)]
    max_timeout: Option<Option<u32>>,
}

/// Create an org
#[utoipa::path(post, path = "/orgs", request_body = CreateOrg, responses((status = 201, body = OrgView)))]
async fn make(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    JsonBody(request): JsonBody<CreateOrg>,
) -> Created<OrgView> {
    let request = OrgRequest {
        name: Some(request.name),
        max_sandboxes: request.max_sandboxes,
        max_timeout: request.max_timeout,
    };
    Ok(created(app.core.create_org(&caller, request).await?))
}

/// List orgs
///
/// Admins see all orgs, newest first; others see their own.
#[utoipa::path(get, path = "/orgs", params(PageQuery), responses((status = 200, body = [OrgView])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Query(query): Query<PageQuery>,
) -> ApiResult<PageResponse<OrgView>> {
    let orgs = app.core.orgs(&caller, &query.page()?).await?;
    Ok(pagination::page_response(orgs))
}

/// Get an org
#[utoipa::path(get, path = "/orgs/{id}", responses((status = 200, body = OrgView)))]
async fn read(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<Json<OrgView>> {
    Ok(Json(app.core.org(&caller, &id).await?.into()))
}

/// Update an org
#[utoipa::path(patch, path = "/orgs/{id}", request_body = UpdateOrg, responses((status = 200, body = OrgView)))]
async fn change(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<UpdateOrg>,
) -> ApiResult<Json<OrgView>> {
    let request = OrgRequest {
        name: request.name,
        max_sandboxes: request.max_sandboxes,
        max_timeout: request.max_timeout,
    };
    let changed = app.core.update_org(&caller, &id, request).await?;
    Ok(Json(changed.into()))
}

/// Delete an org
///
/// Revokes its keys and deletes its history. Fails while the org has sandboxes.
#[utoipa::path(delete, path = "/orgs/{id}", responses((status = 204)))]
async fn remove(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    app.core.remove_org(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
