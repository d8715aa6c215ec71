//! Sandbox creation.

use std::collections::BTreeMap;

use atoll_core::NewSandbox;
use atoll_model::{
    Bytes, Cpus, Error, ExpiryAction, Lifetime, Limits, Network, NetworkPolicy, PolicyAction,
    PortAccess, SandboxSpec,
};
use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;

use super::parse_seconds;
use crate::AppState;
use crate::api_types::Sandbox;
use crate::auth::Authenticated;
use crate::extract::{IdempotencyHeader, IdempotentJson};
use crate::routes::{Created, created};

/// Request to create a sandbox. All fields are optional.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewSandbox, example = json!({"template": "base", "memoryMB": 1024, "timeout": 600}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateSandbox {
    /// The same as `template`.
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    /// Template of the root file system.
    #[schema(default = "base")]
    template: Option<String>,
    /// A second name, unique in the org.
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    alias: Option<String>,
    /// Key-value pairs of the caller: at most 64 entries and 16 KiB.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Environment variables of every command. Write-only: no response contains them.
    #[serde(default)]
    envs: BTreeMap<String, String>,
    /// In seconds; 0: no timeout, if the org permits that.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64, default = 300)]
    timeout: Option<i64>,
    on_timeout: Option<ExpiryAction>,
    /// In seconds; 0: no idle timeout.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64, default = 0)]
    idle_timeout: Option<i64>,
    on_idle: Option<ExpiryAction>,
    /// Activity resumes the sandbox while it is paused.
    #[schema(default = true)]
    auto_resume: Option<bool>,
    /// At most the server's `--max-cpus`, 4 by default.
    #[schema(minimum = 0.05, default = 2)]
    cpu_count: Option<f64>,
    /// In mebibytes; at most the server's `--max-memory`, 8192 by default.
    #[serde(rename = "memoryMB")]
    #[schema(minimum = 16, default = 2048)]
    memory: Option<u64>,
    /// In mebibytes; at most the server's `--max-disk`, 51200 by default.
    #[serde(rename = "diskMB")]
    #[schema(minimum = 16, default = 10240)]
    disk: Option<u64>,
    /// Processes and threads.
    #[schema(minimum = 8, maximum = 4096, default = 1024)]
    pids: Option<u32>,
    /// `fsync` in the sandbox waits for the disk; see "What survives a power cut".
    #[serde(default)]
    #[schema(default = false)]
    durable: bool,
    network: Option<Network>,
    /// `true` selects the network `internet`.
    network_enabled: Option<bool>,
    /// Reachable addresses: IPv4 addresses or CIDR blocks, each with an optional `:port`.
    #[serde(default)]
    allow: Vec<String>,
    /// Unreachable addresses, except those in `allow`.
    #[serde(default)]
    deny: Vec<String>,
}

fn megabytes(field: &str, amount: u64) -> Result<Bytes, Error> {
    amount.checked_mul(1 << 20).map(Bytes).ok_or_else(|| {
        Error::invalid(
            field,
            format!("{field} is {amount}"),
            "give mebibytes, such as 512",
        )
    })
}

/// Limits with the given values replaced.
pub(super) fn with_limits(
    mut limits: Limits,
    cpus: Option<f64>,
    memory: Option<u64>,
    disk: Option<u64>,
    pids: Option<u32>,
) -> Result<Limits, Error> {
    if let Some(cpus) = cpus {
        limits.cpus = cpus.to_string().parse::<Cpus>().map_err(|_| {
            Error::invalid(
                "cpuCount",
                format!("{cpus} is not a number of CPUs"),
                "give a number such as 2 or 0.5",
            )
        })?;
    }
    if let Some(memory) = memory {
        limits.memory = megabytes("memoryMB", memory)?;
    }
    if let Some(disk) = disk {
        limits.disk = megabytes("diskMB", disk)?;
    }
    limits.pids = pids.unwrap_or(limits.pids);
    Ok(limits)
}

impl CreateSandbox {
    fn template(&self) -> Result<String, Error> {
        match (&self.template_id, &self.template) {
            (Some(one), Some(two)) if one != two => Err(Error::invalid(
                "template",
                "template and templateID differ",
                "give one of them",
            )),
            (Some(name), _) | (None, Some(name)) => Ok(name.clone()),
            (None, None) => Ok(SandboxSpec::default().template),
        }
    }

    fn limits(&self) -> Result<Limits, Error> {
        with_limits(
            Limits::default(),
            self.cpu_count,
            self.memory,
            self.disk,
            self.pids,
        )
    }

    fn network(&self) -> Result<Network, Error> {
        match (self.network, self.network_enabled) {
            (Some(Network::None), Some(true)) | (Some(Network::Internet), Some(false)) => {
                Err(Error::invalid(
                    "networkEnabled",
                    "network and networkEnabled contradict each other",
                    "give one of them",
                ))
            }
            (Some(network), _) => Ok(network),
            (None, Some(true)) => Ok(Network::Internet),
            (None, _) => Ok(Network::None),
        }
    }

    fn lifetime(&self) -> Result<Lifetime, Error> {
        let default = Lifetime::default();
        Ok(Lifetime {
            timeout: match self.timeout {
                Some(time) => parse_seconds("timeout", time)?,
                None => default.timeout,
            },
            on_timeout: self.on_timeout.unwrap_or(default.on_timeout),
            idle_timeout: match self.idle_timeout {
                Some(time) => parse_seconds("idleTimeout", time)?,
                None => default.idle_timeout,
            },
            on_idle: self.on_idle.unwrap_or(default.on_idle),
            auto_resume: self.auto_resume.unwrap_or(default.auto_resume),
        })
    }
}

/// Create a sandbox
///
/// When the response arrives, the sandbox accepts commands.
#[utoipa::path(post, path = "/sandboxes", params(IdempotencyHeader), request_body = CreateSandbox,
    responses((status = 201, body = Sandbox)))]
pub(super) async fn create(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    IdempotentJson(request, idempotency): IdempotentJson<CreateSandbox>,
) -> Created<Sandbox> {
    let request = NewSandbox {
        spec: SandboxSpec {
            template: request.template()?,
            limits: request.limits()?,
            network: request.network()?,
            policy: parse_policy(&request.allow, &request.deny)?,
            environment: request.envs.clone(),
            mounts: Vec::new(),
            durable: request.durable,
            lifetime: Some(request.lifetime()?),
        },
        alias: request.alias,
        metadata: request.metadata,
        port_access: PortAccess::Private,
        idempotency,
    };
    let sandbox = app
        .core
        .create(&caller, request)
        .await
        .map_err(rename_error_fields)?;
    Ok(created(app.sandbox(sandbox)))
}

/// Renames the field of an error to its name in the API.
pub(super) fn rename_error_fields(mut error: Error) -> Error {
    let names = [
        ("cpus", "cpuCount"),
        ("memory", "memoryMB"),
        ("disk", "diskMB"),
    ];
    if let Some(field) = error.details.get_mut("field")
        && let Some((_, name)) = names.iter().find(|(name, _)| name == field)
    {
        *field = (*name).to_owned();
    }
    error
}

pub(super) fn parse_policy(allow: &[String], deny: &[String]) -> Result<NetworkPolicy, Error> {
    // With only `allow` rules, everything else is denied.
    let default = if deny.is_empty() && !allow.is_empty() {
        PolicyAction::Deny
    } else {
        PolicyAction::Allow
    };
    NetworkPolicy::parse(allow, deny, default)
}
