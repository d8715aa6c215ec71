//! What a sandbox is to be.

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

/// What a sandbox is to be: everything may be left out.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewSandbox, example = json!({"template": "base", "memoryMB": 1024, "timeout": 600}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateSandbox {
    /// The same as `template`.
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    /// Its starting files.
    #[schema(default = "base")]
    template: Option<String>,
    /// Another name for it, unique in the org.
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    alias: Option<String>,
    /// Words of the caller's own: at most 64 entries and 16 KiB.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Variables of every command; never told again.
    #[serde(default)]
    envs: BTreeMap<String, String>,
    /// In seconds; 0 is without end, as far as the org allows.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64, default = 300)]
    timeout: Option<i64>,
    on_timeout: Option<ExpiryAction>,
    /// In seconds; 0 is for ever.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64, default = 0)]
    idle_timeout: Option<i64>,
    on_idle: Option<ExpiryAction>,
    /// A use of it while it is paused lets it go on.
    #[schema(default = true)]
    auto_resume: Option<bool>,
    /// At most the ceiling of the server: `--max-cpus`, 4 by default.
    #[schema(minimum = 0.05, default = 2)]
    cpu_count: Option<f64>,
    /// In mebibytes, at most the ceiling of the server: `--max-memory`, 8192 by default.
    #[serde(rename = "memoryMB")]
    #[schema(minimum = 16, default = 2048)]
    memory: Option<u64>,
    /// In mebibytes, at most the ceiling of the server: `--max-disk`, 51200 by default.
    #[serde(rename = "diskMB")]
    #[schema(minimum = 16, default = 10240)]
    disk: Option<u64>,
    /// Processes and threads.
    #[schema(minimum = 8, maximum = 4096, default = 1024)]
    pids: Option<u32>,
    /// `fsync` inside waits for the disk; see "What survives a power cut".
    #[serde(default)]
    #[schema(default = false)]
    durable: bool,
    network: Option<Network>,
    /// `true` is the network `internet`.
    network_enabled: Option<bool>,
    /// What it may reach: IPv4 addresses or blocks, with `:port` perhaps.
    #[serde(default)]
    allow: Vec<String>,
    /// What it may not reach.
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

/// Limits with those changed that something is said of.
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
                format!("{cpus} is not a number of cpus"),
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
                "template and templateID are two names for the same, and differ",
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

/// Make a sandbox
///
/// A command works when it answers.
#[utoipa::path(post, path = "/sandboxes", params(IdempotencyHeader), request_body = CreateSandbox,
    responses((status = 201, body = Sandbox)))]
pub(super) async fn create(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    IdempotentJson(request, again): IdempotentJson<CreateSandbox>,
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
        },
        lifetime: request.lifetime()?,
        alias: request.alias,
        metadata: request.metadata,
        port_access: PortAccess::Private,
        again,
    };
    let sandbox = app
        .core
        .create(&caller, request)
        .await
        .map_err(rename_error_fields)?;
    Ok(created(sandbox))
}

/// A limit by the name it has in requests.
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
    // Who names only what passes means that nothing else does.
    let default = if deny.is_empty() && !allow.is_empty() {
        PolicyAction::Deny
    } else {
        PolicyAction::Allow
    };
    NetworkPolicy::parse(allow, deny, default)
}
