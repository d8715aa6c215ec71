//! Files of a sandbox: contents, metadata, changes, archives, search, watches and signed URLs.

mod archive;
mod change;
mod contents;
mod search;
mod signed_urls;
mod target;
mod tree;
mod watch;

pub(crate) use signed_urls::is_signed_url;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(contents::read, contents::write, tree::remove))
        .routes(routes!(tree::list))
        .routes(routes!(tree::stat))
        .routes(routes!(search::search))
        .routes(routes!(watch::watch))
        .routes(routes!(archive::pack, archive::unpack))
        .routes(routes!(signed_urls::make_download))
        .routes(routes!(signed_urls::make_upload))
        .routes(routes!(signed_urls::download))
        .routes(routes!(signed_urls::upload))
        .routes(routes!(change::make_directory))
        .routes(routes!(change::rename))
        .routes(routes!(change::move_into))
        .routes(routes!(change::copy))
        .routes(routes!(change::chmod))
        .routes(routes!(change::chown))
}
