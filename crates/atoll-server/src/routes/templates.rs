//! Templates: root file systems for sandboxes.

use atoll_core::TemplateView;
use atoll_model::runtime::TemplateOptions;
use atoll_model::{Code, Error, Scope};
use axum::Json;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Created, created};
use crate::AppState;
use crate::api_types::{BinaryBody, Time};
use crate::auth::Authenticated;
use crate::error::{ApiError, ApiResult};
use crate::extract::{JsonBody, Path, Query, checked_limit, is_json};
use crate::file_body::body_chunks;
use crate::pagination::PageResponse;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, make))
        .routes(routes!(read, remove))
}

/// A template.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Template {
    #[serde(rename = "templateID")]
    id: String,
    /// The same as `templateID`.
    name: String,
    /// Sandboxes use this template by default.
    default: bool,
    /// Origin of its files.
    source: String,
    /// Default user of commands.
    user: String,
    /// The user may become root with `sudo`.
    sudo: bool,
    /// Total size of its files, in bytes.
    size: u64,
    /// Number of files, directories and links.
    files: u64,
    created_at: Time,
}

impl From<TemplateView> for Template {
    fn from(view: TemplateView) -> Self {
        let meta = view.meta;
        let created = i64::try_from(meta.created_at).unwrap_or(i64::MAX);
        Self {
            id: view.name.clone(),
            name: view.name,
            default: view.is_default,
            source: meta.source,
            user: meta.user.name,
            sudo: meta.sudo,
            size: meta.size,
            files: meta.files,
            created_at: Time::new(created.saturating_mul(1_000_000)),
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListTemplatesQuery {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the previous page: the name of its last template.
    cursor: Option<String>,
}

/// List templates
///
/// Newest first.
#[utoipa::path(get, path = "/templates", params(ListTemplatesQuery),
    responses((status = 200, body = [Template])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Query(query): Query<ListTemplatesQuery>,
) -> ApiResult<PageResponse<Template>> {
    let limit = checked_limit(query.limit, 100, 100)? as usize;
    let mut all = app.core.templates(&caller).await?;
    let begin = match &query.cursor {
        None => 0,
        // If the template was deleted meanwhile, the rest of the list is empty.
        Some(last) => {
            let place = all.iter().position(|template| template.name == *last);
            place.map_or(all.len(), |place| place + 1)
        }
    };
    let mut page = all.split_off(begin);
    let more = page.len() > limit;
    page.truncate(limit);
    let mut headers = HeaderMap::new();
    if let Some(last) = page.last().filter(|_| more)
        && let Ok(cursor) = HeaderValue::from_str(&last.name)
    {
        headers.insert("x-next-cursor", cursor);
    }
    let page = page.into_iter().map(Template::from);
    Ok((headers, Json(page.collect())))
}

/// Get a template
#[utoipa::path(get, path = "/templates/{name}", responses((status = 200, body = Template)))]
async fn read(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> ApiResult<Json<Template>> {
    Ok(Json(app.core.template(&caller, &name).await?.into()))
}

/// Delete a template
///
/// Fails while a sandbox uses the template.
#[utoipa::path(delete, path = "/templates/{name}", responses((status = 204)))]
async fn remove(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> ApiResult<StatusCode> {
    app.core.remove_template(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Query of a template upload.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CreateTemplateQuery {
    #[param(
        pattern = "^[a-z0-9][a-z0-9._-]{0,62}$",
        required = true,
        nullable = false
    )]
    name: Option<String>,
    /// Overwrite the template if it exists.
    #[serde(default)]
    replace: bool,
    /// The user may become root with `sudo`.
    #[param(default = true)]
    sudo: Option<bool>,
}

/// Request to build a template on the server, which is not supported.
#[derive(Debug, Deserialize)]
struct BuildRequest {
    #[serde(rename = "name")]
    _name: String,
}

/// Create a template
///
/// From a tar archive of a root file system, optionally compressed with gzip or zstd.
#[utoipa::path(post, path = "/templates", params(CreateTemplateQuery),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 201, body = Template)))]
async fn make(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Query(query): Query<CreateTemplateQuery>,
    request: Request,
) -> Created<Template> {
    // Checked before the body is read.
    caller.require(Scope::Admin)?;
    if is_json(request.headers()) {
        let JsonBody(BuildRequest { .. }) = JsonBody::from_request(request, &app).await?;
        return Err(ApiError(
            Error::new(
                Code::UnsupportedByHost,
                "templates cannot be built from Dockerfiles, images or snapshots",
            )
            .remedy("send a tar archive of a root file system: POST /templates?name=NAME"),
        ));
    }
    let name = query
        .name
        .ok_or_else(|| Error::invalid("name", "name is required", "POST /templates?name=NAME"))?;
    let options = TemplateOptions {
        replace: query.replace,
        sudo: query.sudo.unwrap_or(true),
        ..TemplateOptions::default()
    };
    let archive = Box::pin(body_chunks(request.into_body()));
    let added = app.core.add_template(&caller, &name, archive, options);
    Ok(created(added.await?))
}
