//! HTTP metrics, and the router of the Prometheus listener.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Core;
use atoll_model::{LatencyFamily, latency_family};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::error::ApiError;
use crate::middleware::check_host_and_origin;
use crate::{AuthMode, Config};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    method: &'static str,
    path: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AuthLabels {
    r#type: &'static str,
    result: &'static str,
}

/// Request metrics, shared by all listeners.
#[derive(Debug, Clone)]
pub struct HttpMetrics {
    requests: Family<ResponseLabels, Counter>,
    durations: LatencyFamily<RouteLabels>,
    auth_attempts: Family<AuthLabels, Counter>,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: latency_family(),
            auth_attempts: Family::default(),
        }
    }
}

impl HttpMetrics {
    /// Records a response; for streams, when the response begins.
    pub(crate) fn request_finished(
        &self,
        method: &'static str,
        path: &str,
        status: u16,
        elapsed: Duration,
    ) {
        let path = path.to_owned();
        let route = RouteLabels {
            method,
            path: path.clone(),
        };
        self.durations
            .get_or_create(&route)
            .observe(elapsed.as_secs_f64());
        let labels = ResponseLabels {
            method,
            path,
            status,
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Records an authentication attempt.
    pub(crate) fn auth_attempt(&self, kind: &'static str, succeeded: bool) {
        let result = if succeeded { "success" } else { "failure" };
        let labels = AuthLabels {
            r#type: kind,
            result,
        };
        self.auth_attempts.get_or_create(&labels).inc();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "http_requests",
            "Responses by route pattern; status 499: the client disconnected",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "http_request_duration",
            "Duration of requests; for a stream, until the response begins",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register(
            "auth_attempts",
            "Authentication attempts by type of credential",
            self.auth_attempts.clone(),
        );
    }
}

/// Router of the Prometheus listener. It has no authentication: it shows counts and durations, no
/// contents of sandboxes.
pub fn exporter(core: &Core, metrics: &HttpMetrics, hosts: BTreeSet<String>) -> Router {
    let mut registry = Registry::with_prefix("atoll");
    core.register(&mut registry);
    metrics.register(&mut registry);
    let config = Config {
        auth: AuthMode::Trusted,
        hosts,
        origins: BTreeSet::new(),
        domains: BTreeSet::new(),
    };
    Router::new()
        .route("/metrics", get(show))
        .with_state(Arc::new((registry, config)))
}

async fn show(State(state): State<Arc<(Registry, Config)>>, request: Request) -> Response {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let (registry, config) = &*state;
    if let Err(error) = check_host_and_origin(&request, config) {
        return ApiError(error).into_response();
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, registry);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}
