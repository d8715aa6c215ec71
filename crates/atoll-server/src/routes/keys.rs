//! API keys of the caller's org; admins may choose another org.

use atoll_core::KeyRequest;
use atoll_model::{Error, Key, KeyId, OrgId, Scope};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Created;
use crate::AppState;
use crate::api_types::Time;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{JsonBody, Path, Query};
use crate::pagination::{self, PageResponse};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, make))
        .routes(routes!(revoke))
}

/// An API key. The secret is present only in the response that creates it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
#[serde(rename_all = "camelCase")]
struct KeyView {
    #[serde(rename = "keyID")]
    id: KeyId,
    #[serde(rename = "orgID")]
    org: OrgId,
    name: String,
    /// First characters of the secret, for recognition.
    prefix: String,
    scope: Scope,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Time>,
    /// The secret; returned once, by the request that creates the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl KeyView {
    fn new(key: Key, secret: Option<String>) -> Self {
        Self {
            id: key.id,
            org: key.org,
            name: key.name,
            prefix: key.prefix,
            scope: key.scope,
            created_at: Time::new(key.created_at),
            expires_at: key.expires_at.map(Time::new),
            last_used_at: key.last_used_at.map(Time::new),
            revoked_at: key.revoked_at.map(Time::new),
            key: secret,
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewKey)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateKey {
    /// Org of the key; default: the caller's. Another org requires an admin.
    #[serde(rename = "orgID")]
    org: Option<String>,
    #[schema(
        min_length = 1,
        max_length = 100,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$"
    )]
    name: String,
    /// At most the caller's scope; default `sandbox:*`.
    scope: Option<Scope>,
    /// When the key expires.
    #[schema(format = DateTime)]
    expires_at: Option<String>,
}

/// Create a key
///
/// Only this response contains the secret.
#[utoipa::path(post, path = "/keys", request_body = CreateKey, responses((status = 201, body = KeyView)))]
async fn make(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    JsonBody(request): JsonBody<CreateKey>,
) -> Created<KeyView> {
    let expires_at = request.expires_at.map(|text| {
        let time: Result<jiff::Timestamp, _> = text.parse();
        time.map(jiff::Timestamp::as_microsecond).map_err(|_| {
            Error::invalid(
                "expiresAt",
                format!("{text:?} is not a time"),
                "write it in RFC 3339, such as 2027-01-31T12:00:00Z",
            )
        })
    });
    let request = KeyRequest {
        org: request.org,
        name: request.name,
        scope: request.scope.unwrap_or(Scope::Sandboxes),
        expires_at: expires_at.transpose()?,
    };
    let created = app.core.create_key(&caller, request).await?;
    let view = KeyView::new(created.key, Some(created.secret));
    Ok((StatusCode::CREATED, Json(view)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListKeysQuery {
    /// Org of the keys; default: the caller's. Another org requires an admin.
    #[serde(rename = "orgID")]
    #[param(rename = "orgID")]
    org: Option<String>,
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the previous page.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
}

/// List keys
///
/// Keys of one org, newest first.
#[utoipa::path(get, path = "/keys", params(ListKeysQuery), responses((status = 200, body = [KeyView])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Query(query): Query<ListKeysQuery>,
) -> ApiResult<PageResponse<KeyView>> {
    let page = pagination::parse_page(query.limit, query.cursor.as_ref())?;
    let keys = app.core.keys(&caller, query.org.as_deref(), &page).await?;
    Ok(pagination::page_response(keys))
}

impl From<Key> for KeyView {
    fn from(key: Key) -> Self {
        Self::new(key, None)
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OrgQuery {
    /// Org of the key; default: the caller's. Another org requires an admin.
    #[serde(rename = "orgID")]
    #[param(rename = "orgID")]
    org: Option<String>,
}

/// Revoke a key
#[utoipa::path(delete, path = "/keys/{id}", params(OrgQuery), responses((status = 204)))]
async fn revoke(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<OrgQuery>,
) -> ApiResult<StatusCode> {
    let org = query.org.as_deref();
    app.core.revoke_key(&caller, org, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
