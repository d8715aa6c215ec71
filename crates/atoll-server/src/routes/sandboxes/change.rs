//! What of a sandbox can change.

use std::collections::BTreeMap;

use atoll_core::{SandboxChange, SandboxRow};
use atoll_model::{Error, ExpiryAction, Lifetime, Network};
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::create::{limits, on_the_wire, policy};
use super::seconds;
use crate::App;
use crate::error::Answer;
use crate::extract::{Body, Path, present};
use crate::middleware::Caller;
use crate::api_types::Sandbox;

/// What of a sandbox changes: what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SandboxChange, example = json!({"alias": "web", "memoryMB": 4096}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Patch {
    /// `null` takes it away.
    #[serde(default, deserialize_with = "present")]
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    alias: Option<Option<String>>,
    /// Replaces all that there is.
    metadata: Option<BTreeMap<String, String>>,
    on_timeout: Option<ExpiryAction>,
    /// In seconds; 0 is for ever.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    idle_timeout: Option<i64>,
    on_idle: Option<ExpiryAction>,
    auto_resume: Option<bool>,
    /// At most the ceiling of the server: `--max-cpus`, 4 by default.
    #[schema(minimum = 0.05)]
    cpu_count: Option<f64>,
    /// In mebibytes, at most the ceiling of the server: `--max-memory`, 8192 by default.
    #[serde(rename = "memoryMB")]
    #[schema(minimum = 16)]
    memory: Option<u64>,
    /// In mebibytes, at most the ceiling of the server: `--max-disk`, 51200 by default.
    #[serde(rename = "diskMB")]
    #[schema(minimum = 16)]
    disk: Option<u64>,
    #[schema(minimum = 8, maximum = 4096)]
    pids: Option<u32>,
}

/// Change a sandbox
///
/// While it runs, too.
#[utoipa::path(patch, path = "/sandboxes/{id}", request_body = Patch, responses((status = 200, body = Sandbox)))]
pub(super) async fn change(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Patch>,
) -> Answer<Json<Sandbox>> {
    let changed = app.core.change(&caller, &id, |row| asked.change(row)).await;
    Ok(Json(changed.map_err(on_the_wire)?.into()))
}

impl Patch {
    /// What becomes of a sandbox that is like this.
    fn change(self, row: &SandboxRow) -> Result<SandboxChange, Error> {
        let before = row.lifetime;
        let sized = limits(
            row.limits,
            self.cpu_count,
            self.memory,
            self.disk,
            self.pids,
        )?;
        let lifetime = Lifetime {
            timeout: before.timeout,
            on_timeout: self.on_timeout.unwrap_or(before.on_timeout),
            idle_timeout: match self.idle_timeout {
                Some(time) => seconds("idleTimeout", time)?,
                None => before.idle_timeout,
            },
            on_idle: self.on_idle.unwrap_or(before.on_idle),
            auto_resume: self.auto_resume.unwrap_or(before.auto_resume),
        };
        Ok(SandboxChange {
            alias: self.alias,
            metadata: self.metadata,
            lifetime: Some(lifetime),
            limits: (sized != row.limits).then_some(sized),
        })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NetworkRules, example = json!({"network": "internet", "allow": ["1.1.1.1:443"]}))]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    network: Option<Network>,
    /// What it may reach: IPv4 addresses or blocks, with `:port` perhaps.
    #[serde(default)]
    allow: Vec<String>,
    /// What it may not reach.
    #[serde(default)]
    deny: Vec<String>,
}

/// Set the network
///
/// And what it may reach.
#[utoipa::path(put, path = "/sandboxes/{id}/network", request_body = Rules, responses((status = 200, body = Sandbox)))]
pub(super) async fn network(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Rules>,
) -> Answer<Json<Sandbox>> {
    let rules = policy(&asked.allow, &asked.deny)?;
    let changed = app.core.set_network(&caller, &id, asked.network, rules);
    Ok(Json(changed.await?.into()))
}
