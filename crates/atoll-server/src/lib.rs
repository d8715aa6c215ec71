//! The HTTP server: axum routes over `atoll-core`. Routes contain no decisions: they translate a
//! request into a core call and its result into a response.

mod api_types;
mod auth;
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

use atoll_core::{Access, Core, SandboxView};
use axum::Router;
pub use metrics::{HttpMetrics, exporter};

use api_types::Sandbox;

pub use serve::{ConnectionLimits, Listener, serve};
pub use tls::Tls;

pub use openapi::openapi;

/// How callers authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Each request needs an API key.
    ApiKeys,
    /// No credentials are required: the operator's Unix socket, and `--dev`.
    Trusted,
}

/// Settings of a router.
#[derive(Debug, Clone)]
pub struct Config {
    /// How callers authenticate.
    pub auth: AuthMode,
    /// Host names of this server, besides `localhost` and IP addresses.
    pub hosts: BTreeSet<String>,
    /// Additional origins that browsers may send requests from (CORS).
    pub origins: BTreeSet<String>,
    /// Domains for sandbox host names `PORT-SANDBOX.DOMAIN` and for E2B's control API at
    /// `api.DOMAIN`.
    pub domains: BTreeSet<String>,
}

impl Config {
    /// Whether a lower-case host is `api.DOMAIN`.
    pub(crate) fn is_api_of_domain(&self, host: &str) -> bool {
        let domain = host.strip_prefix("api.");
        domain.is_some_and(|domain| self.domains.contains(domain))
    }
}

/// State shared by all handlers.
#[derive(Debug, Clone)]
pub(crate) struct AppState {
    pub(crate) core: Core,
    /// Access to sandboxes for the routes that use one.
    pub(crate) access: Arc<dyn Access>,
    pub(crate) metrics: HttpMetrics,
    pub(crate) config: Arc<Config>,
}

impl AppState {
    /// A sandbox as the API shows it.
    pub(crate) fn sandbox(&self, view: SandboxView) -> Sandbox {
        Sandbox::new(view, self.core.runtime().enforces_disk_limits())
    }
}

/// The router with all routes and middleware.
pub fn router(core: Core, metrics: HttpMetrics, config: Config) -> Router {
    let app = AppState {
        access: Arc::new(core.clone()),
        core,
        metrics,
        config: Arc::new(config),
    };
    routes::all(&app)
}
