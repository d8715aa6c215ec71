//! Sandboxes as E2B's clients see them.

use std::collections::BTreeMap;
use std::convert::Infallible;

use atoll_core::{SandboxView, TokenScope};
use atoll_model::{ExpiryAction, Network, PolicyAction, PortAccess, SandboxState};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api_types::Time;
use crate::middleware::{host_of, request_authority};
use crate::{AppState, Config};

/// The version of E2B's daemon whose behaviour this is.
const ENVD_VERSION: &str = "0.6.13";
/// They have one, and nobody reads it.
const CLIENT_ID: &str = "atoll";

/// The domain below which a client is to look for its sandboxes.
#[derive(Debug)]
pub(super) struct Domain(Option<String>);

impl FromRequestParts<AppState> for Domain {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Infallible> {
        let host =
            request_authority(&parts.uri, &parts.headers).map(|host| host.to_ascii_lowercase());
        Ok(Self(domain(&app.config, host.as_deref())))
    }
}

/// The one by which the server was host, with its port; else the first.
fn domain(config: &Config, host: Option<&str>) -> Option<String> {
    if host.is_some_and(|host| config.is_api_of_domain(host_of(host))) {
        return host?.strip_prefix("api.").map(ToOwned::to_owned);
    }
    config.domains.first().cloned()
}

/// What a create and a connect answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "clientID")]
    client: &'static str,
    /// Of the template.
    alias: String,
    envd_version: &'static str,
    envd_access_token: String,
    /// Asked of who wants what it serves, if not everybody may have that.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
}

impl Sandbox {
    pub(super) fn new(app: &AppState, domain: Domain, view: &SandboxView) -> Self {
        let row = &view.row;
        Self {
            template: row.template.clone(),
            id: row.id.to_string(),
            client: CLIENT_ID,
            alias: row.template.clone(),
            envd_version: ENVD_VERSION,
            envd_access_token: app.core.token(&row.id, TokenScope::Data),
            traffic_access_token: (row.port_access != PortAccess::Public)
                .then(|| app.core.token(&row.id, TokenScope::Ports)),
            domain: domain.0,
        }
    }
}

/// What a list has of each.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedSandbox {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "clientID")]
    client: &'static str,
    /// Of the template.
    alias: String,
    started_at: Time,
    end_at: Time,
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory: u64,
    #[serde(rename = "diskSizeMB")]
    disk: u64,
    metadata: BTreeMap<String, String>,
    state: &'static str,
    envd_version: &'static str,
}

/// The two states that they have a word for.
pub(super) fn e2b_state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Paused | SandboxState::Stopped => "paused",
        _ => "running",
    }
}

/// A sandbox without end, in a form that must have one.
const NEVER: i64 = 253_402_300_799_000_000;

impl From<&SandboxView> for ListedSandbox {
    fn from(view: &SandboxView) -> Self {
        let row = &view.row;
        let started = row.started_at.unwrap_or(row.created_at);
        let end = match row.state {
            SandboxState::Running | SandboxState::Creating => row.end_at.unwrap_or(NEVER),
            _ => row.stopped_at.unwrap_or(started),
        };
        Self {
            template: row.template.clone(),
            id: row.id.to_string(),
            client: CLIENT_ID,
            alias: row.template.clone(),
            started_at: Time::new(started),
            end_at: Time::new(end),
            cpu_count: row.limits.cpus.0.div_ceil(1000).max(1).into(),
            memory: row.limits.memory.0 >> 20,
            disk: row.limits.disk.0 >> 20,
            metadata: row.metadata.clone(),
            state: e2b_state(row.state),
            envd_version: ENVD_VERSION,
        }
    }
}

/// Everything about one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxDetail {
    #[serde(flatten)]
    summary: ListedSandbox,
    envd_access_token: String,
    allow_internet_access: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
    lifecycle: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_mode: Option<&'static str>,
    network: Value,
}

impl SandboxDetail {
    pub(super) fn new(app: &AppState, domain: Domain, view: &SandboxView) -> Self {
        let row = &view.row;
        let on_timeout = match row.lifetime.on_timeout {
            ExpiryAction::Destroy => "kill",
            ExpiryAction::Stop | ExpiryAction::Pause => "pause",
        };
        let rules = |rules: &[atoll_model::NetworkRule]| -> Vec<String> {
            rules.iter().map(ToString::to_string).collect()
        };
        let closed = row.network == Network::None || row.policy.default == PolicyAction::Deny;
        Self {
            summary: view.into(),
            envd_access_token: app.core.token(&row.id, TokenScope::Data),
            allow_internet_access: !closed,
            domain: domain.0,
            lifecycle: json!({ "autoResume": row.lifetime.auto_resume, "onTimeout": on_timeout }),
            pause_mode: match row.state {
                SandboxState::Paused => Some("full"),
                SandboxState::Stopped => Some("filesystem"),
                _ => None,
            },
            network: json!({
                "allowOut": rules(&row.policy.allow),
                "denyOut": rules(&row.policy.deny),
                "allowPublicTraffic": row.port_access == PortAccess::Public,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::domain;
    use crate::{AuthMode, Config};

    #[test]
    fn a_client_stays_with_the_domain_and_the_port_that_it_host() {
        let config = Config {
            auth: AuthMode::ApiKeys,
            hosts: BTreeSet::new(),
            origins: BTreeSet::new(),
            domains: ["box.test", "other.test"].map(ToOwned::to_owned).into(),
        };
        for (host, answered) in [
            (Some("api.box.test"), "box.test"),
            (Some("api.other.test"), "other.test"),
            (Some("api.other.test:8443"), "other.test:8443"),
            // By another name, or by none: where the domain's usual port leads is not known here.
            (Some("127.0.0.1:8443"), "box.test"),
            (Some("api.else.test:8443"), "box.test"),
            (None, "box.test"),
        ] {
            let found = domain(&config, host);
            assert_eq!(found.as_deref(), Some(answered), "{host:?}");
        }
        let none = Config {
            domains: BTreeSet::new(),
            ..config
        };
        assert_eq!(domain(&none, Some("api.box.test")), None);
    }
}
