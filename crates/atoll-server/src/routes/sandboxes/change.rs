//! Changes of a sandbox: metadata, lifetime, limits and network.

use std::collections::BTreeMap;

use atoll_core::{SandboxChange, SandboxRow, SandboxView};
use atoll_model::{Error, ExpiryAction, Lifetime, Network, NetworkRule, PolicyAction};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::create::{parse_policy, rename_error_fields, with_limits};
use super::parse_seconds;
use crate::AppState;
use crate::api_types::Sandbox;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{JsonBody, Path, double_option};

/// Changes of a sandbox; omitted fields stay unchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SandboxChange, example = json!({"alias": "web", "memoryMB": 4096}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct UpdateSandbox {
    /// `null` removes the alias.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    alias: Option<Option<String>>,
    /// Replaces all metadata.
    metadata: Option<BTreeMap<String, String>>,
    on_timeout: Option<ExpiryAction>,
    /// In seconds; 0: no idle timeout.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    idle_timeout: Option<i64>,
    on_idle: Option<ExpiryAction>,
    auto_resume: Option<bool>,
    /// At most the server's `--max-cpus`, 4 by default.
    #[schema(minimum = 0.05)]
    cpu_count: Option<f64>,
    /// In mebibytes; at most the server's `--max-memory`, 8192 by default.
    #[serde(rename = "memoryMB")]
    #[schema(minimum = 16)]
    memory: Option<u64>,
    /// In mebibytes; at most the server's `--max-disk`, 51200 by default.
    #[serde(rename = "diskMB")]
    #[schema(minimum = 16)]
    disk: Option<u64>,
    #[schema(minimum = 8, maximum = 4096)]
    pids: Option<u32>,
}

/// Update a sandbox
///
/// Also while it runs.
#[utoipa::path(patch, path = "/sandboxes/{id}", request_body = UpdateSandbox, responses((status = 200, body = Sandbox)))]
pub(super) async fn change(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<UpdateSandbox>,
) -> ApiResult<Json<Sandbox>> {
    let changed = app
        .core
        .change(&caller, &id, |row| request.into_change(row))
        .await;
    Ok(Json(app.sandbox(changed.map_err(rename_error_fields)?)))
}

impl UpdateSandbox {
    /// The change for a sandbox with this row.
    fn into_change(self, row: &SandboxRow) -> Result<SandboxChange, Error> {
        let current = row.lifetime;
        let limits = with_limits(
            row.limits,
            self.cpu_count,
            self.memory,
            self.disk,
            self.pids,
        )?;
        let lifetime = Lifetime {
            timeout: current.timeout,
            on_timeout: self.on_timeout.unwrap_or(current.on_timeout),
            idle_timeout: match self.idle_timeout {
                Some(time) => parse_seconds("idleTimeout", time)?,
                None => current.idle_timeout,
            },
            on_idle: self.on_idle.unwrap_or(current.on_idle),
            auto_resume: self.auto_resume.unwrap_or(current.auto_resume),
        };
        Ok(SandboxChange {
            alias: self.alias,
            metadata: self.metadata,
            lifetime: Some(lifetime),
            limits: (limits != row.limits).then_some(limits),
        })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NetworkRules, example = json!({"network": "internet", "allow": ["1.1.1.1:443"]}))]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkRules {
    network: Option<Network>,
    /// Reachable addresses: IPv4 addresses or CIDR blocks, each with an optional `:port`.
    #[serde(default)]
    allow: Vec<String>,
    /// Unreachable addresses, except those in `allow`.
    #[serde(default)]
    deny: Vec<String>,
    /// Action for addresses that no rule matches; default: `deny` if there are only `allow` rules,
    /// otherwise `allow`.
    default: Option<PolicyAction>,
}

/// Network and rules of a sandbox, in the form of the request that sets them.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SandboxNetwork {
    network: Network,
    /// Addresses or blocks that the sandbox may reach, each with an optional `:port`.
    #[schema(value_type = Vec<String>)]
    allow: Vec<NetworkRule>,
    /// Addresses or blocks that the sandbox may not reach, except those in `allow`.
    #[schema(value_type = Vec<String>)]
    deny: Vec<NetworkRule>,
    /// Action for addresses that no rule matches.
    default: PolicyAction,
}

impl From<SandboxView> for SandboxNetwork {
    fn from(view: SandboxView) -> Self {
        let policy = view.row.policy;
        Self {
            network: view.row.network,
            allow: policy.allow,
            deny: policy.deny,
            default: policy.default,
        }
    }
}

/// Get the network
///
/// Returns the network and its rules.
#[utoipa::path(get, path = "/sandboxes/{id}/network", responses((status = 200, body = SandboxNetwork)))]
pub(super) async fn read_network(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<Json<SandboxNetwork>> {
    Ok(Json(app.core.sandbox(&caller, &id).await?.into()))
}

/// Set the network
///
/// Replaces the network and all its rules.
#[utoipa::path(put, path = "/sandboxes/{id}/network", request_body = NetworkRules, responses((status = 200, body = Sandbox)))]
pub(super) async fn network(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<NetworkRules>,
) -> ApiResult<Json<Sandbox>> {
    let mut rules = parse_policy(&request.allow, &request.deny)?;
    rules.default = request.default.unwrap_or(rules.default);
    let changed = app.core.set_network(&caller, &id, request.network, rules);
    Ok(Json(app.sandbox(changed.await?)))
}
