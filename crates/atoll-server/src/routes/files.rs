//! Files of a sandbox: raw bytes in and out, what can be said about them as JSON, and changes of the tree.

mod archive;
mod change;
mod contents;
mod links;
mod place;
mod search;
mod tree;
mod watch;

pub(crate) use links::is_link;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(contents::read, contents::write, tree::remove))
        .routes(routes!(tree::list))
        .routes(routes!(tree::stat))
        .routes(routes!(search::search))
        .routes(routes!(watch::watch))
        .routes(routes!(archive::pack, archive::unpack))
        .routes(routes!(links::make_download))
        .routes(routes!(links::make_upload))
        .routes(routes!(links::download))
        .routes(routes!(links::upload))
        .routes(routes!(change::make_directory))
        .routes(routes!(change::rename))
        .routes(routes!(change::move_into))
        .routes(routes!(change::copy))
        .routes(routes!(change::chmod))
        .routes(routes!(change::chown))
}
