//! `atoll sandbox create`.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_client::{Client, Request};
use atoll_model::{Error, RequestId, parse_duration};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::super::server_args::{ServerArgs, print_json, text};
use super::super::template::variables;
use super::super::{eprint_line, print_line};
use super::lifetime;
use super::size::Size;
use crate::config::Config;

/// Action at the end of a lifetime or an idle timeout.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum End {
    Destroy,
    Stop,
    Pause,
}

impl End {
    /// The name on the wire.
    pub(super) fn name(self) -> &'static str {
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
    #[command(flatten)]
    server: ServerArgs,
}

impl Create {
    pub(crate) fn run(&self, config: &Config) -> Result<(), Error> {
        let body = self.body()?;
        let made = self
            .server
            .remote
            .with(config, async |client| create(client, &body).await)?;
        if self.server.json {
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

/// Creates a sandbox. Retries use the same idempotency key, so that only one is created.
pub(crate) async fn create(client: &Client, body: &Value) -> Result<Value, Error> {
    let key = RequestId::random();
    let request = Request::post("/sandboxes", body)
        .header("idempotency-key", key.as_str())
        .deadline(Duration::from_mins(2));
    client.send_json(&request.idempotent()).await
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
pub(super) fn pairs(option: &str, words: &[String]) -> Result<Option<Value>, Error> {
    let pairs = variables(words).map_err(|error| {
        let remedy = format!("write --{option} NAME=VALUE");
        error.remedy(remedy).detail("field", option)
    })?;
    let pairs: BTreeMap<_, _> = pairs.into_iter().collect();
    Ok((!pairs.is_empty()).then(|| json!(pairs)))
}
