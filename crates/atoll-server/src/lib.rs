//! Everything that speaks HTTP: thin routes over `atoll-core`. A route contains no decision: it turns a
//! request into a call, and what came of it into an answer.

mod api_types;
mod cors;
mod docs_page;
mod e2b;
mod error;
mod extract;
mod file_body;
mod malformed;
mod metrics;
mod middleware;
mod openapi;
mod pagination;
mod remedy;
mod routes;
mod serve;
mod sse;
mod tls;
mod tunnel;
mod websocket;

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_core::Core;
use axum::Router;
pub use metrics::{HttpMetrics, exporter};

pub use serve::{ConnectionLimits, Listener, serve};
pub use tls::Tls;

pub use openapi::openapi;

/// Who is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Whoever has a key.
    ApiKeys,
    /// Everybody: the operator's socket, and `--dev`.
    Trusted,
}

/// How requests are taken.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who is let in.
    pub auth: AuthMode,
    /// Names of this server, besides `localhost` and addresses.
    pub hosts: BTreeSet<String>,
    /// Origins of other pages that browsers may show our answers to.
    pub origins: BTreeSet<String>,
    /// Domains whose names `PORT-SANDBOX.DOMAIN` lead to sandboxes, and whose `api.DOMAIN` is E2B's control API.
    pub domains: BTreeSet<String>,
}

impl Config {
    /// Whether a host, in small letters, is `api.DOMAIN`.
    pub(crate) fn is_api_of_domain(&self, host: &str) -> bool {
        let domain = host.strip_prefix("api.");
        domain.is_some_and(|domain| self.domains.contains(domain))
    }
}

/// What every route sees.
#[derive(Debug, Clone)]
pub(crate) struct AppState {
    pub(crate) core: Core,
    pub(crate) metrics: HttpMetrics,
    pub(crate) config: Arc<Config>,
}

/// All routes, with what is checked before them.
pub fn router(core: Core, metrics: HttpMetrics, config: Config) -> Router {
    let app = AppState {
        core,
        metrics,
        config: Arc::new(config),
    };
    routes::all(&app)
}
