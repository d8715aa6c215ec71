//! Orgs: made and changed by an admin.

use atoll_core::OrgRequest;
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;

use super::sandboxes::present;
use super::{Made, made};
use crate::App;
use crate::answer::Answer;
use crate::body::Body;
use crate::guard::Caller;
use crate::views::OrgView;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/orgs", get(list).post(make))
        .route("/orgs/{id}", get(read).patch(change))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    max_sandboxes: Option<Option<u32>>,
    #[serde(default, deserialize_with = "present")]
    max_timeout: Option<Option<u32>>,
}

impl From<Asked> for OrgRequest {
    fn from(asked: Asked) -> Self {
        Self {
            name: asked.name,
            max_sandboxes: asked.max_sandboxes,
            max_timeout: asked.max_timeout,
        }
    }
}

async fn make(
    State(app): State<App>,
    Caller(caller): Caller,
    Body(asked): Body<Asked>,
) -> Made<OrgView> {
    Ok(made(app.core.make_org(&caller, asked.into()).await?))
}

async fn list(State(app): State<App>, Caller(caller): Caller) -> Answer<Json<Vec<OrgView>>> {
    let orgs = app.core.orgs(&caller).await?;
    Ok(Json(orgs.into_iter().map(OrgView::from).collect()))
}

async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<OrgView>> {
    Ok(Json(app.core.org(&caller, &id).await?.into()))
}

async fn change(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Asked>,
) -> Answer<Json<OrgView>> {
    Ok(Json(
        app.core
            .change_org(&caller, &id, asked.into())
            .await?
            .into(),
    ))
}
