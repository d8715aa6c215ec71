//! Templates: what sandboxes start from.

use atoll_core::TemplateView;
use atoll_model::{Code, Error, Scope};
use atoll_worker::template::{self, TemplateOptions};
use axum::Json;
use axum::body::Body as RawBody;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use futures_util::StreamExt as _;
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
    /// Sandboxes start from it if nothing is said.
    default: bool,
    /// What it was made from.
    source: String,
    /// Whom commands run as.
    user: String,
    /// Programs may become root.
    sudo: bool,
    /// Of its files, in bytes.
    size: u64,
    /// Files, directories and links.
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
    /// The `X-Next-Cursor` of the page before: the name of its last one.
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
        // After one that has gone meanwhile comes nothing.
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
/// One that no sandbox needs.
#[utoipa::path(delete, path = "/templates/{name}", responses((status = 204)))]
async fn remove(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> ApiResult<StatusCode> {
    app.core.remove_template(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How a template that is sent is to be.
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
    /// One that is there may go.
    #[serde(default)]
    replace: bool,
    /// Programs may become root.
    #[param(default = true)]
    sudo: Option<bool>,
}

/// A template that is not sent but made here.
#[derive(Debug, Deserialize)]
struct BuildRequest {
    #[serde(rename = "name")]
    _name: String,
}

/// Make a template
///
/// From a tar archive of a root file system, plain or packed by gzip or zstd.
#[utoipa::path(post, path = "/templates", params(CreateTemplateQuery),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 201, body = Template)))]
async fn make(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Query(query): Query<CreateTemplateQuery>,
    request: Request,
) -> Created<Template> {
    // Before anything of it is read.
    caller.require(Scope::Admin)?;
    if is_json(request.headers()) {
        let JsonBody(BuildRequest { .. }) = JsonBody::from_request(request, &app).await?;
        return Err(ApiError(
            Error::new(
                Code::UnsupportedByHost,
                "templates from Dockerfiles, images and snapshots cannot be made here",
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
    let (sender, stream) = template::archive_channel();
    let added = app.core.add_template(&caller, &name, stream, options);
    // Both at once: what is sent is unpacked as it comes.
    let (sent, added) = tokio::join!(forward_body(request.into_body(), sender), added);
    let template = added?;
    sent?;
    Ok(created(template))
}

/// Sends a body to be unpacked. If it breaks off, so does what is unpacked.
async fn forward_body(body: RawBody, sender: template::ArchiveSender) -> Result<(), Error> {
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| {
            Error::invalid(
                "body",
                "the body is incomplete",
                "send the whole body again",
            )
        })?;
        if !sender.send(chunk.to_vec()).await {
            break;
        }
    }
    sender.end().await;
    Ok(())
}
