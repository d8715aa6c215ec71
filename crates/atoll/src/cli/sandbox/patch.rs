//! `atoll sandbox patch`: changes a sandbox that exists.

use std::time::Duration;

use atoll_client::{Client, Request};
use atoll_model::{Bytes, Cpus, Error, parse_duration};
use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};

use super::super::print_line;
use super::super::server_args::{ServerArgs, below, find, print_json, text};
use super::create::{End, pairs, seconds};
use super::size::mebibytes;
use crate::config::Config;

/// Change settings of a sandbox, also while it runs, and print its id. Other settings keep their
/// values.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("change").required(true).multiple(true).args([
        "name", "no_name", "metadata", "no_metadata", "cpus", "memory", "disk", "pids", "timeout",
        "on_timeout", "idle_timeout", "on_idle", "auto_resume", "no_auto_resume",
    ]),
    after_help = "Examples:
  atoll sandbox patch i5f2 --name web
  atoll sandbox patch web --memory 4G --cpus 2
  atoll sandbox patch web --timeout 8h --on-timeout pause
  atoll sandbox patch web --idle-timeout 10m --on-idle stop"
)]
pub(crate) struct Patch {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// New name: a-z, 0-9 and -.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Remove the name.
    #[arg(long, conflicts_with = "name")]
    no_name: bool,
    /// Metadata entry; may be repeated. Entries that are not given are removed.
    #[arg(long, value_name = "K=V")]
    metadata: Vec<String>,
    /// Remove all metadata.
    #[arg(long, conflicts_with = "metadata")]
    no_metadata: bool,
    /// CPU limit, in CPUs.
    #[arg(long, value_name = "N")]
    cpus: Option<Cpus>,
    /// Memory limit, including the page cache.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Limit of the disk space that the sandbox's changes take.
    #[arg(long, value_name = "SIZE")]
    disk: Option<Bytes>,
    /// Limit of processes and threads.
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// Lifetime from now on; 0 is no end.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Action at the end of the lifetime.
    #[arg(long, value_name = "WHAT")]
    on_timeout: Option<End>,
    /// Time that the sandbox may be idle; 0 is no limit.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    idle_timeout: Option<Duration>,
    /// Action when the idle timeout is reached.
    #[arg(long, value_name = "WHAT")]
    on_idle: Option<End>,
    /// Resume the sandbox on a command or file call while it is paused.
    #[arg(long)]
    auto_resume: bool,
    /// Refuse commands and file calls while the sandbox is paused.
    #[arg(long, conflicts_with = "auto_resume")]
    no_auto_resume: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl Patch {
    pub(super) fn run(&self, config: &Config) -> Result<(), Error> {
        let body = self.body()?;
        let timeout = self
            .timeout
            .map(|time| seconds("timeout", time))
            .transpose()?;
        let sandbox = self.server.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            change(client, &id, &body, timeout).await
        })?;
        if self.server.json {
            return print_json(&sandbox);
        }
        print_line(text(&sandbox, "sandboxID"));
        Ok(())
    }

    /// The fields that change, except the timeout, which is set by another request.
    fn body(&self) -> Result<Value, Error> {
        let mut body = Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            body.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("alias", self.name.as_ref().map(|name| json!(name)));
        add("alias", self.no_name.then_some(Value::Null));
        add("metadata", pairs("metadata", &self.metadata)?);
        add("metadata", self.no_metadata.then(|| json!({})));
        add(
            "cpuCount",
            self.cpus.map(|cpus| json!(f64::from(cpus.0) / 1000.0)),
        );
        for (name, field, size) in [
            ("memory", "memoryMB", self.memory),
            ("disk", "diskMB", self.disk),
        ] {
            let size = size.map(|size| mebibytes(name, size)).transpose()?;
            add(field, size.map(|size| json!(size)));
        }
        add("pids", self.pids.map(|pids| json!(pids)));
        let idle = self.idle_timeout.map(|time| seconds("idle-timeout", time));
        add("idleTimeout", idle.transpose()?);
        let end = |end: Option<End>| end.map(|end| json!(end.name()));
        add("onTimeout", end(self.on_timeout));
        add("onIdle", end(self.on_idle));
        let resume = self.auto_resume || self.no_auto_resume;
        add("autoResume", resume.then_some(json!(self.auto_resume)));
        Ok(Value::Object(body))
    }
}

/// Changes the fields first: the server applies all or none of them. Both requests are idempotent.
async fn change(
    client: &Client,
    id: &str,
    body: &Value,
    timeout: Option<Value>,
) -> Result<Value, Error> {
    if body.as_object().is_some_and(|fields| !fields.is_empty()) {
        let fields = Request::patch(below(id, &[]), body).idempotent();
        client.send_json(&fields).await?;
    }
    if let Some(timeout) = timeout {
        let body = json!({ "timeout": timeout });
        let request = Request::post(below(id, &["timeout"]), &body).idempotent();
        client.send_buffered(&request).await?;
    }
    client.send_json(&Request::get(below(id, &[]))).await
}
