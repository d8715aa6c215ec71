//! Files of a sandbox: raw bytes in and out, what can be said about them as JSON, and changes of the tree.

mod change;
mod contents;
mod place;
mod tree;

use axum::Router;
use axum::routing::{get, post};

use crate::App;

pub(super) fn routes() -> Router<App> {
    let here = "/sandboxes/{id}/files";
    let at = |name: &str| format!("{here}/{name}");
    let contents = get(contents::read).put(contents::write);
    Router::new()
        .route(here, contents.delete(tree::remove))
        .route(&at("list"), get(tree::list))
        .route(&at("stat"), get(tree::stat))
        .route(&at("mkdir"), post(change::make_directory))
        .route(&at("rename"), post(change::rename))
        .route(&at("move"), post(change::move_into))
        .route(&at("copy"), post(change::copy))
        .route(&at("chmod"), post(change::chmod))
        .route(&at("chown"), post(change::chown))
}
