//! What whoever watches is told about requests, and the listener where everything that is counted is shown.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Core;
use atoll_model::{Durations, durations_by};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::error::Failure;
use crate::middleware::meant_for_us;
use crate::{Access, Config};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    path: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    method: &'static str,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    r#type: &'static str,
    result: &'static str,
}

/// What is counted of requests, whichever listener they come to.
#[derive(Debug, Clone)]
pub struct Meters {
    requests: Family<Answered, Counter>,
    took: Durations<Route>,
    asked: Family<Asked, Counter>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            took: durations_by(),
            asked: Family::default(),
        }
    }
}

impl Meters {
    /// A request was answered; a stream, when it began.
    pub(crate) fn answered(&self, method: &'static str, path: &str, status: u16, took: Duration) {
        let path = path.to_owned();
        let route = Route {
            method,
            path: path.clone(),
        };
        self.took.get_or_create(&route).observe(took.as_secs_f64());
        let answered = Answered {
            method,
            path,
            status,
        };
        self.requests.get_or_create(&answered).inc();
    }

    /// Somebody asked to be let in.
    pub(crate) fn asked_in(&self, kind: &'static str, let_in: bool) {
        let result = if let_in { "success" } else { "failure" };
        let asked = Asked {
            r#type: kind,
            result,
        };
        self.asked.get_or_create(&asked).inc();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "http_requests",
            "Answers, by route pattern; 499 is a caller who did not wait",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "http_request_duration",
            "How long answers took; of a stream, until it began",
            Unit::Seconds,
            self.took.clone(),
        );
        registry.register(
            "auth_attempts",
            "Who asked to be let in: by a key or a ticket, with none, or where everybody is",
            self.asked.clone(),
        );
    }
}

/// The routes of the listener for Prometheus. Everybody who reaches it may look: it shows how many and how long,
/// and nothing of what is in sandboxes.
pub fn exporter(core: &Core, meters: &Meters, hosts: BTreeSet<String>) -> Router {
    let mut registry = Registry::with_prefix("atoll");
    core.register(&mut registry);
    meters.register(&mut registry);
    let config = Config {
        access: Access::Open,
        hosts,
        origins: BTreeSet::new(),
        domains: BTreeSet::new(),
    };
    Router::new()
        .route("/metrics", get(show))
        .with_state(Arc::new((registry, config)))
}

async fn show(State(shown): State<Arc<(Registry, Config)>>, request: Request) -> Response {
    const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let (registry, config) = &*shown;
    if let Err(error) = meant_for_us(&request, config) {
        return Failure(error).into_response();
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, registry);
    ([(header::CONTENT_TYPE, KIND)], text).into_response()
}
