//! `atoll sandbox rm`, `stop`, `start`, `restart`, `pause` and `resume`.

use std::process::ExitCode;
use std::time::Duration;

use atoll_client::{Client, Request};
use atoll_model::{Code, Error};
use clap::Args;
use serde_json::{Value, json};

use super::super::print_line;
use super::super::rm::find_run;
use super::super::server_args::{Remote, below, each, find, text};
use crate::config::Config;

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

impl Several {
    /// Acts on the sandboxes in order; a failure does not stop the others.
    pub(crate) fn each(&self, config: &Config, verb: Option<&str>) -> Result<ExitCode, Error> {
        self.remote.with(config, async |client| {
            let changed = each(&self.sandboxes, async |name| {
                let sandbox = change(client, name, verb).await;
                let sandbox = sandbox.map_err(|error| explain(error, name, config))?;
                if self.json {
                    print_line(&sandbox.to_string());
                } else {
                    print_line(text(&sandbox, "sandboxID"));
                }
                Ok(())
            });
            Ok(changed.await)
        })
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
