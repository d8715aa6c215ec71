//! `atoll sandbox`: creates and lists sandboxes of a server, and changes their state.

mod filter;
mod lifetime;
mod network;
mod patch;

use std::process::ExitCode;
use std::time::Duration;

use atoll_client::{Client, Request};
use atoll_model::{
    Bytes, Code, Cpus, Error, Limits, Network, NetworkRule, RequestId, parse_duration,
};
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::Table;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::rm::find_run;
use super::server_args::{Remote, below, fields, find, plain, print_json, text};
use super::template::variables;
use super::{eprint_line, print_error, print_line};
use crate::config::Config;
pub(crate) use filter::Filter;
pub(crate) use lifetime::until;

/// Create and list sandboxes of a server, and change their state.
///
/// SANDBOX is an id, a name, or a unique prefix of either.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll sandbox create --name web --net internet --timeout 1h
  atoll sandbox ls
  atoll sandbox rm web")]
pub(crate) enum Sandbox {
    #[command(visible_alias = "new")]
    Create(Box<Create>),
    #[command(visible_aliases = ["list", "ps"])]
    Ls(Ls),
    #[command(visible_aliases = ["show", "inspect"])]
    Get(Get),
    /// Remove sandboxes, with their files.
    #[command(visible_aliases = ["delete", "kill"])]
    Rm(Several),
    /// Stop sandboxes: end their processes, keep their files.
    Stop(Several),
    /// Start stopped sandboxes from their stored files.
    Start(Several),
    /// Stop and start sandboxes.
    Restart(Several),
    /// Pause sandboxes: freeze their processes in memory.
    Pause(Several),
    /// Resume the processes of paused sandboxes.
    Resume(Several),
    Timeout(Timeout),
    #[command(visible_aliases = ["set", "update"])]
    Patch(Box<patch::Patch>),
    Network(network::Rules),
}

/// Action at the end of a lifetime or an idle timeout.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum End {
    Destroy,
    Stop,
    Pause,
}

impl End {
    /// The name on the wire.
    fn name(self) -> &'static str {
        match self {
            Self::Destroy => "destroy",
            Self::Stop => "stop",
            Self::Pause => "pause",
        }
    }
}

/// Create a sandbox and print its id.
///
/// When its lifetime ends, a sandbox with a name is stopped: its files stay, and `atoll start` runs
/// it again. A sandbox without a name is deleted with its files. `atoll ls` and a line on standard
/// error show when the lifetime ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox create
  ID=$(atoll sandbox create --memory 512M --cpus 1 --timeout 1h)
  atoll sandbox create --name web --net internet --idle-timeout 10m --on-idle pause")]
pub(crate) struct Create {
    /// Name of the sandbox: a-z, 0-9 and -.
    #[arg(long)]
    name: Option<String>,
    /// Template to start from [default: base].
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    #[command(flatten)]
    size: Size,
    /// Lifetime from now on; 0 is no end [default: 5m].
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Action at the end of the lifetime [default: stop with --name, else destroy].
    #[arg(long, value_name = "WHAT")]
    on_timeout: Option<End>,
    /// Time that the sandbox may be idle [default: for ever].
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    idle_timeout: Option<Duration>,
    /// Action when the idle timeout is reached [default: stop].
    #[arg(long, value_name = "WHAT", requires = "idle_timeout")]
    on_idle: Option<End>,
    /// Refuse commands and file calls while the sandbox is paused, instead of resuming it.
    #[arg(long)]
    no_auto_resume: bool,
    /// Make `fsync` in the sandbox wait for the disk, so that synced data survives a power failure.
    #[arg(long)]
    durable: bool,
    /// Set an environment variable for all commands of the sandbox.
    #[arg(long = "env", short = 'e', value_name = "K=V")]
    env: Vec<String>,
    /// Metadata entry of the sandbox; may be repeated with other keys.
    #[arg(long, value_name = "K=V")]
    metadata: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Resource limits and network of a sandbox.
#[derive(Debug, Args)]
pub(crate) struct Size {
    /// CPU limit, in CPUs [default: 2].
    #[arg(long, value_name = "N")]
    cpus: Option<Cpus>,
    /// Memory limit, including the page cache [default: 2G].
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Limit of the disk space that the sandbox's changes take [default: 10G].
    #[arg(long, value_name = "SIZE")]
    disk: Option<Bytes>,
    /// Limit of processes and threads [default: 1024].
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// Network of the sandbox.
    #[arg(long, default_value = "none", value_name = "none|internet")]
    pub(crate) net: Network,
    /// Allow connections to these addresses. Without --deny, all others are refused.
    #[arg(long, value_name = "RULE")]
    allow: Vec<NetworkRule>,
    /// Refuse connections to these addresses, except those that --allow names.
    #[arg(long, value_name = "RULE")]
    deny: Vec<NetworkRule>,
}

/// List sandboxes, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox ls
  atoll sandbox ls --state running -q | xargs atoll sandbox rm
  atoll sandbox ls --json | jq -r '.[].sandboxID'")]
pub(crate) struct Ls {
    #[command(flatten)]
    filter: Filter,
    /// Print only ids.
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Show one sandbox.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox get web
  atoll sandbox get i5f2 --json | jq -r .endAt")]
pub(crate) struct Get {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox rm web i5f2
  atoll pause web
  atoll ls -q --state paused | xargs atoll resume")]
pub(crate) struct Several {
    /// Ids, names, or unique prefixes of either.
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
    /// Print JSON, one line per sandbox, instead of ids.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Set the remaining lifetime of a sandbox.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox timeout web 2h
  atoll sandbox timeout web 0      without end")]
pub(crate) struct Timeout {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Lifetime from now on; 0 is no end.
    #[arg(value_parser = parse_duration)]
    duration: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

impl Sandbox {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Create(create) => create.run(config)?,
            Self::Ls(ls) => ls.run(config)?,
            Self::Get(get) => get.run(config)?,
            Self::Rm(which) => return which.each(config, None),
            Self::Stop(which) => return which.each(config, Some("stop")),
            Self::Start(which) => return which.each(config, Some("start")),
            Self::Restart(which) => return which.each(config, Some("restart")),
            Self::Pause(which) => return which.each(config, Some("pause")),
            Self::Resume(which) => return which.each(config, Some("resume")),
            Self::Timeout(timeout) => timeout.run(config)?,
            Self::Patch(patch) => patch.run(config)?,
            Self::Network(network) => network.run(config)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Create {
    pub(crate) fn run(&self, config: &Config) -> Result<(), Error> {
        let body = self.body()?;
        let made = self
            .remote
            .with(config, async |client| create(client, &body).await)?;
        if self.json {
            return print_json(&made);
        }
        print_line(text(&made, "sandboxID"));
        if let Some(notice) = lifetime::notice(&made) {
            eprint_line(&format!("  {notice}"));
        }
        Ok(())
    }

    fn body(&self) -> Result<Value, Error> {
        let mut body = self.size.body()?;
        let mut add = |name: &str, value: Option<Value>| {
            body.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("template", self.template.as_ref().map(|name| json!(name)));
        add("alias", self.name.as_ref().map(|name| json!(name)));
        let whole =
            |name: &str, time: Option<Duration>| time.map(|time| seconds(name, time)).transpose();
        add("timeout", whole("timeout", self.timeout)?);
        add("idleTimeout", whole("idle-timeout", self.idle_timeout)?);
        let end = |end: Option<End>| end.map(|end| json!(end.name()));
        // Users return to a sandbox with a name, so the end of its lifetime must not delete its
        // files.
        let on_timeout = self.on_timeout.or(self.name.as_ref().map(|_| End::Stop));
        add("onTimeout", end(on_timeout));
        add("onIdle", end(self.on_idle));
        add("autoResume", self.no_auto_resume.then_some(json!(false)));
        add("durable", self.durable.then_some(json!(true)));
        add("envs", pairs("env", &self.env)?);
        add("metadata", pairs("metadata", &self.metadata)?);
        Ok(Value::Object(body))
    }
}

impl Size {
    /// The body of the request.
    pub(crate) fn body(&self) -> Result<Map<String, Value>, Error> {
        let usual = Limits::default();
        let limits = Limits {
            cpus: self.cpus.unwrap_or(usual.cpus),
            memory: self.memory.unwrap_or(usual.memory),
            disk: self.disk.unwrap_or(usual.disk),
            pids: self.pids.unwrap_or(usual.pids),
        };
        described(limits, self.net, &self.allow, &self.deny)
    }
}

/// Creates a sandbox. Retries use the same idempotency key, so that only one is created.
pub(crate) async fn create(client: &Client, body: &Value) -> Result<Value, Error> {
    let key = RequestId::random();
    let request = Request::post("/sandboxes", body)
        .header("idempotency-key", key.as_str())
        .deadline(Duration::from_mins(2));
    client.send_json(&request.idempotent()).await
}

/// Limits and network as fields of the request.
pub(crate) fn described(
    limits: Limits,
    network: Network,
    allow: &[NetworkRule],
    deny: &[NetworkRule],
) -> Result<Map<String, Value>, Error> {
    let rules = |rules: &[NetworkRule]| -> Vec<String> {
        rules.iter().map(NetworkRule::to_string).collect()
    };
    let body = json!({
        "cpuCount": f64::from(limits.cpus.0) / 1000.0,
        "memoryMB": mebibytes("memory", limits.memory)?,
        "diskMB": mebibytes("disk", limits.disk)?,
        "pids": limits.pids,
        "network": network.to_string(),
        "allow": rules(allow),
        "deny": rules(deny),
    });
    let Value::Object(body) = body else {
        return Err(Error::new(Code::Internal, "a sandbox is an object"));
    };
    Ok(body)
}

fn mebibytes(field: &str, size: Bytes) -> Result<u64, Error> {
    if size.0.is_multiple_of(1 << 20) {
        return Ok(size.0 >> 20);
    }
    let message = format!("--{field} {size} is not whole mebibytes");
    Err(Error::invalid(field, message, "give it like 512M or 2G"))
}

/// Whole seconds, as the API requires.
pub(crate) fn seconds(field: &str, time: Duration) -> Result<Value, Error> {
    if time.subsec_nanos() == 0 {
        return Ok(json!(time.as_secs()));
    }
    let message = format!("--{field} {time:?} is not whole seconds");
    Err(Error::invalid(field, message, "give it like 30s, 5m or 2h"))
}

/// Options `K=V` as an object; `None` if there are none.
fn pairs(option: &str, words: &[String]) -> Result<Option<Value>, Error> {
    let pairs = variables(words).map_err(|error| {
        let remedy = format!("write --{option} NAME=VALUE");
        error.remedy(remedy).detail("field", option)
    })?;
    let pairs: std::collections::BTreeMap<_, _> = pairs.into_iter().collect();
    Ok((!pairs.is_empty()).then(|| json!(pairs)))
}

impl Ls {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let all = self
            .remote
            .with(config, async |client| self.filter.list(client).await)?;
        if self.json {
            return print_json(&Value::Array(all));
        }
        if self.quiet {
            for sandbox in &all {
                print_line(text(sandbox, "sandboxID"));
            }
            return Ok(());
        }
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header([
            "ID", "NAME", "STATE", "TEMPLATE", "CPUS", "MEMORY", "AGE", "ENDS",
        ]);
        for sandbox in &all {
            let memory = Bytes(sandbox["memoryMB"].as_u64().unwrap_or(0) << 20);
            table.add_row([
                text(sandbox, "sandboxID").to_owned(),
                text(sandbox, "alias").to_owned(),
                state(sandbox),
                plain(text(sandbox, "templateID")),
                sandbox["cpuCount"].to_string(),
                memory.to_string(),
                since(text(sandbox, "createdAt")),
                until(sandbox),
            ]);
        }
        print_line(&table.to_string());
        Ok(())
    }
}

/// State of a sandbox, with the reason if no request caused it.
pub(crate) fn state(sandbox: &Value) -> String {
    match (text(sandbox, "state"), text(sandbox, "reason")) {
        (state, "") => state.to_owned(),
        (state, reason) => format!("{state} ({reason})"),
    }
}

/// Time since then.
pub(crate) fn since(time: &str) -> String {
    let then = time.parse::<Timestamp>();
    let passed = then.map(|then| Timestamp::now().duration_since(then).as_secs());
    passed.map_or_else(|_| String::new(), |seconds| span(seconds.max(0) as u64))
}

/// Formats a duration.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

impl Get {
    pub(crate) fn run(&self, config: &Config) -> Result<(), Error> {
        let sandbox = self.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            client.send_json(&Request::get(below(&id, &[]))).await
        })?;
        if self.json {
            return print_json(&sandbox);
        }
        print_line(&fields(&sandbox).to_string());
        Ok(())
    }
}

impl Several {
    /// Acts on the sandboxes in order; a failure does not stop the others.
    pub(crate) fn each(&self, config: &Config, verb: Option<&str>) -> Result<ExitCode, Error> {
        let failed = self.remote.with(config, async |client| {
            let mut failed = None;
            for name in &self.sandboxes {
                match change(client, name, verb).await {
                    Ok(changed) if self.json => print_line(&changed.to_string()),
                    Ok(changed) => print_line(text(&changed, "sandboxID")),
                    Err(error) => {
                        let error = explain(error, name, config);
                        print_error(&error);
                        failed = failed.or(Some(error.code.exit_code()));
                    }
                }
            }
            Ok(failed)
        })?;
        Ok(failed.map_or(ExitCode::SUCCESS, ExitCode::from))
    }
}

/// Adds a hint to the error if the name is that of a run.
fn explain(error: Error, name: &str, config: &Config) -> Error {
    if error.code != Code::SandboxNotFound || find_run(name, config).is_none() {
        return error;
    }
    error.remedy(format!(
        "{name} is a run of this machine, not a sandbox: `atoll rm {name}` ends and removes it"
    ))
}

/// Changes or deletes a sandbox; returns its new state.
pub(crate) async fn change(
    client: &Client,
    name: &str,
    verb: Option<&str>,
) -> Result<Value, Error> {
    let id = find(client, name).await?;
    let request = match verb {
        Some("restart") => Request::post(below(&id, &["restart"]), &json!({})),
        // These requests are idempotent.
        Some(verb) => Request::post(below(&id, &[verb]), &json!({})).idempotent(),
        None => Request::delete(below(&id, &[])),
    };
    let changed = client
        .send_json(&request.deadline(Duration::from_mins(2)))
        .await?;
    Ok(match changed {
        Value::Null => json!({ "sandboxID": id }),
        changed => changed,
    })
}

impl Timeout {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let body = json!({ "timeout": seconds("timeout", self.duration)? });
        let sandbox = self.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let request = Request::post(below(&id, &["timeout"]), &body).idempotent();
            client.send_buffered(&request).await?;
            client.send_json(&Request::get(below(&id, &[]))).await
        })?;
        if self.json {
            return print_json(&sandbox);
        }
        match text(&sandbox, "endAt") {
            "" => print_line("without end"),
            end => print_line(end),
        }
        Ok(())
    }
}
