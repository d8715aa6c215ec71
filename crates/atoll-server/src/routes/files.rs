//! Files of a sandbox: raw bytes in and out, what can be said about them as JSON, and changes of the tree.

mod archive;
mod change;
mod contents;
mod links;
mod place;
mod search;
mod tree;
mod watch;

use axum::Router;
use axum::routing::{get, post, put};

use crate::App;

pub(super) fn routes() -> Router<App> {
    let here = "/sandboxes/{id}/files";
    let at = |name: &str| format!("{here}/{name}");
    let contents = get(contents::read).put(contents::write);
    Router::new()
        .route(here, contents.delete(tree::remove))
        .route(&at("list"), get(tree::list))
        .route(&at("stat"), get(tree::stat))
        .route(&at("search"), get(search::search))
        .route(&at("archive"), get(archive::pack).put(archive::unpack))
        .route(&at("watch"), get(watch::watch))
        .route(&at("download-url"), post(links::make_download))
        .route(&at("upload-url"), post(links::make_upload))
        .route(&at("download"), get(links::download))
        .route(&at("upload"), put(links::upload))
        .route(&at("mkdir"), post(change::make_directory))
        .route(&at("rename"), post(change::rename))
        .route(&at("move"), post(change::move_into))
        .route(&at("copy"), post(change::copy))
        .route(&at("chmod"), post(change::chmod))
        .route(&at("chown"), post(change::chown))
}
