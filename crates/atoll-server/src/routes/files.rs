//! Files of a sandbox: raw bytes in and out, what can be said about them as JSON, and changes of the tree.

mod archive;
mod change;
mod contents;
mod links;
mod place;
mod search;
mod tree;
mod watch;

use axum::routing::{get, post, put};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    let at = |name: &str| format!("/sandboxes/{{id}}/files/{name}");
    OpenApiRouter::new()
        .routes(routes!(contents::read, contents::write, tree::remove))
        .routes(routes!(tree::list))
        .routes(routes!(tree::stat))
        .route(&at("search"), get(search::search))
        .route(&at("archive"), get(archive::pack).put(archive::unpack))
        .route(&at("watch"), get(watch::watch))
        .route(&at("download-url"), post(links::make_download))
        .route(&at("upload-url"), post(links::make_upload))
        .route(&at("download"), get(links::download))
        .route(&at("upload"), put(links::upload))
        .routes(routes!(change::make_directory))
        .routes(routes!(change::rename))
        .routes(routes!(change::move_into))
        .routes(routes!(change::copy))
        .routes(routes!(change::chmod))
        .routes(routes!(change::chown))
}
