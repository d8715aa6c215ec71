//! Files of a sandbox: raw bytes in and out, what can be said about them as JSON, and changes of the tree.

mod change;
mod contents;
mod place;
mod tree;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(contents::read, contents::write, tree::remove))
        .routes(routes!(tree::list))
        .routes(routes!(tree::stat))
        .routes(routes!(change::make_directory))
        .routes(routes!(change::rename))
        .routes(routes!(change::move_into))
        .routes(routes!(change::copy))
        .routes(routes!(change::chmod))
        .routes(routes!(change::chown))
}
