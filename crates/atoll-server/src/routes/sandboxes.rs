//! Sandboxes.

use std::collections::BTreeMap;

use atoll_core::{Context, NewSandbox, SandboxChange, Which};
use atoll_model::{
    Bytes, Cpus, Ending, Error, Lifetime, Limits, Network, Policy, SandboxSpec, SandboxState,
    Verdict,
};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Made, made};
use crate::App;
use crate::answer::Answer;
use crate::body::{Body, Key, Query, Repeatable};
use crate::guard::Caller;
use crate::page::{self, Part};
use crate::views::Sandbox;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(read, change, delete))
        .routes(routes!(timeout))
        .routes(routes!(keep_alive))
        .routes(routes!(stop))
        .routes(routes!(start))
        .routes(routes!(restart))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(network))
}

/// What a sandbox is to be: everything may be left out.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewSandbox, example = json!({"template": "base", "memoryMB": 1024, "timeout": 600}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Create {
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
    on_timeout: Option<Ending>,
    /// In seconds; 0 is for ever.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64, default = 0)]
    idle_timeout: Option<i64>,
    on_idle: Option<Ending>,
    /// A use of it while it is paused lets it go on.
    #[schema(default = true)]
    auto_resume: Option<bool>,
    #[schema(minimum = 0.05, maximum = 4, default = 2)]
    cpu_count: Option<f64>,
    /// In mebibytes.
    #[serde(rename = "memoryMB")]
    #[schema(minimum = 16, maximum = 8192, default = 2048)]
    memory: Option<u64>,
    /// In mebibytes.
    #[serde(rename = "diskMB")]
    #[schema(minimum = 16, maximum = 51200, default = 10240)]
    disk: Option<u64>,
    /// Processes and threads.
    #[schema(minimum = 8, maximum = 4096, default = 1024)]
    pids: Option<u32>,
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

/// Seconds on the wire: 0 is without end.
fn seconds(field: &str, seconds: i64) -> Result<Option<u32>, Error> {
    match u32::try_from(seconds) {
        Ok(0) => Ok(None),
        // A hundred years.
        Ok(seconds) if seconds <= 3_155_760_000 => Ok(Some(seconds)),
        _ => Err(Error::invalid(
            field,
            format!("{field} is {seconds}"),
            "give seconds from 1 on, or 0 for no end",
        )),
    }
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
fn limits(
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

impl Create {
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
        limits(
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
        let usual = Lifetime::default();
        Ok(Lifetime {
            timeout: match self.timeout {
                Some(time) => seconds("timeout", time)?,
                None => usual.timeout,
            },
            on_timeout: self.on_timeout.unwrap_or(usual.on_timeout),
            idle_timeout: match self.idle_timeout {
                Some(time) => seconds("idleTimeout", time)?,
                None => usual.idle_timeout,
            },
            on_idle: self.on_idle.unwrap_or(usual.on_idle),
            auto_resume: self.auto_resume.unwrap_or(usual.auto_resume),
        })
    }
}

/// Make a sandbox
///
/// A command works when it answers.
#[utoipa::path(post, path = "/sandboxes", params(Key), request_body = Create,
    responses((status = 201, body = Sandbox)))]
async fn create(
    State(app): State<App>,
    Caller(caller): Caller,
    Repeatable(asked, again): Repeatable<Create>,
) -> Made<Sandbox> {
    let asked = NewSandbox {
        spec: SandboxSpec {
            template: asked.template()?,
            limits: asked.limits()?,
            network: asked.network()?,
            policy: policy(&asked.allow, &asked.deny)?,
            environment: asked.envs.clone(),
            mounts: Vec::new(),
        },
        lifetime: asked.lifetime()?,
        alias: asked.alias,
        metadata: asked.metadata,
        public_ports: true,
        again,
    };
    let sandbox = app.core.create(&caller, asked).await.map_err(on_the_wire)?;
    Ok(made(sandbox))
}

/// A limit by the name it has in requests.
fn on_the_wire(mut error: Error) -> Error {
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

fn policy(allow: &[String], deny: &[String]) -> Result<Policy, Error> {
    // Who names only what passes means that nothing else does.
    let default = if deny.is_empty() && !allow.is_empty() {
        Verdict::Deny
    } else {
        Verdict::Allow
    };
    Policy::parse(allow, deny, default)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Listed {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the page before.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
    /// Only those in this state; `error` is `failed`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    state: Option<String>,
    /// The same as `state`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    status: Option<String>,
}

impl Listed {
    /// The state that is asked for, by either of its names; `failed` has two spellings.
    fn state(&self) -> Result<Option<SandboxState>, Error> {
        let field = if self.state.is_some() {
            "state"
        } else {
            "status"
        };
        let Some(word) = self.state.as_ref().or(self.status.as_ref()) else {
            return Ok(None);
        };
        let spelled = |state: &SandboxState| {
            state.name() == word || (word == "error" && *state == SandboxState::Failed)
        };
        let found = SandboxState::ALL.into_iter().find(spelled);
        found.map(Some).ok_or_else(|| {
            let known = SandboxState::ALL.map(SandboxState::name).join(", ");
            let message = format!("{word:?} is not a state");
            Error::invalid(field, message, format!("choose one of {known}"))
        })
    }

    pub(super) async fn answer(
        &self,
        app: &App,
        caller: &Context,
        which: Which,
    ) -> Answer<Part<Sandbox>> {
        let page = page::asked(self.limit, self.cursor.as_ref())?;
        let state = self.state()?;
        let found = app.core.sandboxes(caller, which, state, &page).await?;
        Ok(page::part(found))
    }
}

/// List sandboxes
///
/// Newest first; deleted ones are not there any more.
#[utoipa::path(get, path = "/sandboxes", params(Listed),
    responses((status = 200, body = [Sandbox], headers(("X-Next-Cursor" = String, description = "There is more: the `cursor` of the next page")))))]
async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<Listed>,
) -> Answer<Part<Sandbox>> {
    asked.answer(&app, &caller, Which::Living).await
}

/// Get a sandbox
#[utoipa::path(get, path = "/sandboxes/{id}", responses((status = 200, body = Sandbox)))]
async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.sandbox(&caller, &id)?.into()))
}

/// Delete a sandbox
///
/// With its files.
#[utoipa::path(delete, path = "/sandboxes/{id}", responses((status = 204)))]
async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    app.core.delete(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What of a sandbox changes: what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = SandboxChange, example = json!({"alias": "web", "memoryMB": 4096}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Patch {
    /// `null` takes it away.
    #[serde(default, deserialize_with = "present")]
    #[schema(pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    alias: Option<Option<String>>,
    /// Replaces all that there is.
    metadata: Option<BTreeMap<String, String>>,
    on_timeout: Option<Ending>,
    /// In seconds; 0 is for ever.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    idle_timeout: Option<i64>,
    on_idle: Option<Ending>,
    auto_resume: Option<bool>,
    #[schema(minimum = 0.05, maximum = 4)]
    cpu_count: Option<f64>,
    /// In mebibytes.
    #[serde(rename = "memoryMB")]
    #[schema(minimum = 16, maximum = 8192)]
    memory: Option<u64>,
    /// In mebibytes.
    #[serde(rename = "diskMB")]
    #[schema(minimum = 16, maximum = 51200)]
    disk: Option<u64>,
    #[schema(minimum = 8, maximum = 4096)]
    pids: Option<u32>,
}

/// Tells `null` from nothing.
pub(super) fn present<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// Change a sandbox
///
/// While it runs, too.
#[utoipa::path(patch, path = "/sandboxes/{id}", request_body = Patch, responses((status = 200, body = Sandbox)))]
async fn change(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Patch>,
) -> Answer<Json<Sandbox>> {
    let row = app.core.sandbox(&caller, &id)?.row;
    let before = row.lifetime;
    let sized = limits(
        row.limits,
        asked.cpu_count,
        asked.memory,
        asked.disk,
        asked.pids,
    )?;
    let lifetime = Lifetime {
        timeout: before.timeout,
        on_timeout: asked.on_timeout.unwrap_or(before.on_timeout),
        idle_timeout: match asked.idle_timeout {
            Some(time) => seconds("idleTimeout", time)?,
            None => before.idle_timeout,
        },
        on_idle: asked.on_idle.unwrap_or(before.on_idle),
        auto_resume: asked.auto_resume.unwrap_or(before.auto_resume),
    };
    let change = SandboxChange {
        alias: asked.alias,
        metadata: asked.metadata,
        lifetime: Some(lifetime),
        limits: (sized != row.limits).then_some(sized),
    };
    let changed = app.core.change(&caller, &id, change).await;
    Ok(Json(changed.map_err(on_the_wire)?.into()))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Timeout {
    /// In seconds from now; 0 is without end, as far as the org allows.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    timeout: i64,
}

/// Set the timeout
///
/// How long it has from now on.
#[utoipa::path(post, path = "/sandboxes/{id}/timeout", request_body = Timeout, responses((status = 200, body = Sandbox)))]
async fn timeout(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Timeout>,
) -> Answer<Json<Sandbox>> {
    let time = seconds("timeout", asked.timeout)?;
    Ok(Json(app.core.set_timeout(&caller, &id, time).await?.into()))
}

/// Keep alive
///
/// Counts as a use: it is not idle.
#[utoipa::path(post, path = "/sandboxes/{id}/keepalive", responses((status = 200, body = Sandbox)))]
async fn keep_alive(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.keep_alive(&caller, &id)?.into()))
}

/// Stop
///
/// Its processes end, its files stay.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", responses((status = 200, body = Sandbox)))]
async fn stop(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.stop(&caller, &id).await?.into()))
}

/// Start
///
/// Makes a stopped one run again.
#[utoipa::path(post, path = "/sandboxes/{id}/start", responses((status = 200, body = Sandbox)))]
async fn start(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.start(&caller, &id).await?.into()))
}

/// Restart
///
/// Stops it and starts it.
#[utoipa::path(post, path = "/sandboxes/{id}/restart", responses((status = 200, body = Sandbox)))]
async fn restart(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.restart(&caller, &id).await?.into()))
}

/// Pause
///
/// Its processes stand still, and so do its clocks.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", responses((status = 200, body = Sandbox)))]
async fn pause(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.pause(&caller, &id).await?.into()))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Resume {
    /// In seconds from now; what was left if nothing is said.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    timeout: Option<i64>,
}

/// Resume
///
/// Lets a paused one go on.
#[utoipa::path(post, path = "/sandboxes/{id}/resume", request_body = Resume, responses((status = 200, body = Sandbox)))]
async fn resume(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Resume>,
) -> Answer<Json<Sandbox>> {
    let time = asked
        .timeout
        .map(|time| seconds("timeout", time))
        .transpose()?;
    let resumed = app.core.resume(&caller, &id, time).await?;
    Ok(Json(resumed.into()))
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NetworkRules, example = json!({"network": "internet", "allow": ["1.1.1.1:443"]}))]
#[serde(deny_unknown_fields)]
struct Rules {
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
async fn network(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Rules>,
) -> Answer<Json<Sandbox>> {
    let rules = policy(&asked.allow, &asked.deny)?;
    let changed = app.core.set_network(&caller, &id, asked.network, rules);
    Ok(Json(changed.await?.into()))
}
