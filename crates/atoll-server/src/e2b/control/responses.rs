//! Response types of E2B's control API.

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

/// Version of E2B's daemon (envd) that is emulated.
const ENVD_VERSION: &str = "0.6.13";
/// Required by the schema, not evaluated by clients.
const CLIENT_ID: &str = "atoll";

/// Domain for the host names of sandboxes.
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

/// The domain of the requested host, with its port; otherwise the first configured one.
fn domain(config: &Config, host: Option<&str>) -> Option<String> {
    if host.is_some_and(|host| config.is_api_of_domain(host_of(host))) {
        return host?.strip_prefix("api.").map(ToOwned::to_owned);
    }
    config.domains.first().cloned()
}

/// Response of create and connect.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "clientID")]
    client: &'static str,
    /// Alias of the template.
    alias: String,
    envd_version: &'static str,
    envd_access_token: String,
    /// Token for ports; only if they are not public.
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

/// A sandbox in a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedSandbox {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "clientID")]
    client: &'static str,
    /// Alias of the template.
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

/// The state in E2B's terms.
pub(super) fn e2b_state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Paused | SandboxState::Stopped => "paused",
        _ => "running",
    }
}

/// End of a sandbox without a timeout; the schema requires a time.
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

/// Response of get.
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
    fn domain_and_port_follow_the_requested_host() {
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
            // Another host name: the port of the domain is unknown.
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
