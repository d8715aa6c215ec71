//! Sandboxes and their history.

use std::collections::BTreeMap;

use atoll_core::{NewSandbox, SandboxChange};
use atoll_model::{
    Bytes, Cpus, Ending, Error, Lifetime, Limits, Network, Policy, SandboxSpec, SandboxState,
    Verdict,
};
use atoll_store::Page;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Deserialize;

use super::{Made, made};
use crate::App;
use crate::answer::Answer;
use crate::body::{Body, Query, Repeatable};
use crate::guard::Caller;
use crate::views::Sandbox;

pub(super) fn routes() -> Router<App> {
    let one = get(read).patch(change).delete(delete);
    Router::new()
        .route("/sandboxes", post(create).get(list))
        .route("/sandboxes/{id}", one)
        .route("/sandboxes/{id}/timeout", post(timeout))
        .route("/sandboxes/{id}/keepalive", post(keep_alive))
        .route("/sandboxes/{id}/stop", post(stop))
        .route("/sandboxes/{id}/start", post(start))
        .route("/sandboxes/{id}/restart", post(restart))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/{id}/network", put(network))
        .route("/sandboxes/{id}/ports", get(ports))
        .route("/sandboxes/{id}/metrics", get(usage))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Create {
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    template: Option<String>,
    alias: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    timeout: Option<i64>,
    on_timeout: Option<Ending>,
    idle_timeout: Option<i64>,
    on_idle: Option<Ending>,
    auto_resume: Option<bool>,
    cpu_count: Option<f64>,
    #[serde(rename = "memoryMB")]
    memory: Option<u64>,
    #[serde(rename = "diskMB")]
    disk: Option<u64>,
    pids: Option<u32>,
    network: Option<Network>,
    network_enabled: Option<bool>,
    #[serde(default)]
    allow: Vec<String>,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    limit: Option<u32>,
    cursor: Option<String>,
    state: Option<String>,
    status: Option<String>,
}

impl Listed {
    fn page(&self) -> Result<Page, Error> {
        self.check()?;
        let limit = self.limit.unwrap_or(100);
        if !(1..=100).contains(&limit) {
            let message = format!("limit is {limit}");
            return Err(Error::invalid("limit", message, "give 1 to 100"));
        }
        let before = self.cursor.as_ref().map(|cursor| {
            let parts = cursor.split_once('.');
            let parsed = parts.and_then(|(time, id)| Some((time.parse().ok()?, id.to_owned())));
            parsed.ok_or_else(|| {
                Error::invalid(
                    "cursor",
                    "this cursor is not one of ours",
                    "give the X-Next-Cursor of the page before",
                )
            })
        });
        Ok(Page {
            limit,
            before: before.transpose()?,
        })
    }

    /// Refuses a state that there is not.
    fn check(&self) -> Result<(), Error> {
        for (field, word) in [("state", &self.state), ("status", &self.status)] {
            if let Some(word) = word
                && word != "error"
                && !SandboxState::ALL.iter().any(|state| state.name() == word)
            {
                let known = SandboxState::ALL.map(SandboxState::name).join(", ");
                let message = format!("{word:?} is not a state");
                return Err(Error::invalid(
                    field,
                    message,
                    format!("choose one of {known}"),
                ));
            }
        }
        Ok(())
    }

    fn fits(&self, view: &atoll_core::SandboxView) -> bool {
        let state = view.row.state.name();
        let spelled = |word: &String| word == state || (word == "error" && state == "failed");
        self.state
            .as_ref()
            .or(self.status.as_ref())
            .is_none_or(spelled)
    }
}

/// A page of sandboxes, and where the next one begins.
fn paged(rows: Vec<atoll_core::SandboxView>, asked: &Listed) -> (HeaderMap, Json<Vec<Sandbox>>) {
    let mut headers = HeaderMap::new();
    let full = rows.len() == asked.limit.unwrap_or(100) as usize;
    if let Some(last) = rows.last().filter(|_| full) {
        let cursor = format!("{}.{}", last.row.created_at, last.row.id);
        if let Ok(cursor) = HeaderValue::from_str(&cursor) {
            headers.insert("x-next-cursor", cursor);
        }
    }
    let fitting = rows.into_iter().filter(|row| asked.fits(row));
    (headers, Json(fitting.map(Sandbox::from).collect()))
}

async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<Listed>,
) -> Answer<(HeaderMap, Json<Vec<Sandbox>>)> {
    let rows = app.core.sandboxes(&caller, false, &asked.page()?).await?;
    Ok(paged(rows, &asked))
}

pub(super) async fn sessions(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<Listed>,
) -> Answer<(HeaderMap, Json<Vec<Sandbox>>)> {
    let rows = app.core.sessions(&caller, &asked.page()?).await?;
    Ok(paged(rows, &asked))
}

async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.sandbox(&caller, &id)?.into()))
}

async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    app.core.delete(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Patch {
    #[serde(default, deserialize_with = "present")]
    alias: Option<Option<String>>,
    metadata: Option<BTreeMap<String, String>>,
    on_timeout: Option<Ending>,
    #[serde(default)]
    idle_timeout: Option<i64>,
    on_idle: Option<Ending>,
    auto_resume: Option<bool>,
    cpu_count: Option<f64>,
    #[serde(rename = "memoryMB")]
    memory: Option<u64>,
    #[serde(rename = "diskMB")]
    disk: Option<u64>,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timeout {
    timeout: i64,
}

async fn timeout(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Timeout>,
) -> Answer<Json<Sandbox>> {
    let time = seconds("timeout", asked.timeout)?;
    Ok(Json(app.core.set_timeout(&caller, &id, time).await?.into()))
}

async fn keep_alive(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.keep_alive(&caller, &id)?.into()))
}

async fn stop(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.stop(&caller, &id).await?.into()))
}

async fn start(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.start(&caller, &id).await?.into()))
}

async fn restart(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.restart(&caller, &id).await?.into()))
}

async fn pause(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.pause(&caller, &id).await?.into()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resume {
    timeout: Option<i64>,
}

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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    network: Option<Network>,
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
}

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

async fn ports(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Vec<serde_json::Value>>> {
    let used = app
        .core
        .enter(&caller, &id, atoll_model::Scope::Read)
        .await?;
    let ports = used.runtime().ports(used.id()).await?;
    let view = |at: std::net::SocketAddr| serde_json::json!({ "port": at.port(), "address": at.ip().to_string() });
    Ok(Json(ports.into_iter().map(view).collect()))
}

async fn usage(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<serde_json::Value>> {
    let used = app.core.look(&caller, &id)?;
    let usage = used.runtime().usage(used.id())?;
    Ok(Json(serde_json::json!({
        "cpuSeconds": usage.cpu.as_secs_f64(),
        "memoryBytes": usage.memory.0,
        "pids": usage.pids,
    })))
}
