//! `atoll org`: creates, lists, changes and deletes orgs of a server.

use std::process::ExitCode;
use std::time::Duration;

use atoll_client::{Client, Request, path};
use atoll_model::{Code, Error, OrgId, parse_duration};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::sandbox::{seconds, since, span};
use super::server_args::{Remote, ServerArgs, plain, print_json, text};
use super::{print_error, print_line};
use crate::cli::borderless_table;
use crate::config::Config;

/// Create, list and delete orgs of a server, and set their limits.
///
/// An org owns sandboxes and keys, and cannot see those of other orgs. Creating an org needs an
/// admin key; `atoll key create --org` creates its keys.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll org create team-a --max-sandboxes 20
  atoll key create team-a --org team-a
  atoll org set team-a --max-timeout 24h
  atoll org ls
  atoll org rm team-a")]
pub(crate) enum Org {
    #[command(visible_alias = "new")]
    Create(Create),
    #[command(visible_alias = "list")]
    Ls(Ls),
    #[command(visible_aliases = ["patch", "update"])]
    Set(Set),
    #[command(visible_alias = "delete")]
    Rm(Rm),
}

/// Limits of an org.
#[derive(Debug, Args)]
struct Limits {
    /// Maximum number of sandboxes; 0 is no limit but the capacity of the machine.
    #[arg(long, value_name = "N")]
    max_sandboxes: Option<u32>,
    /// Maximum lifetime of a sandbox; 0 is no limit.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    max_timeout: Option<Duration>,
}

/// Create an org and print its id.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  atoll org create team-a --max-sandboxes 20 --max-timeout 24h")]
pub(crate) struct Create {
    /// Name of the org.
    name: String,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    server: ServerArgs,
}

/// List orgs, newest first: all for an admin, your own for others.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll org ls
  atoll org ls --json | jq -r '.[].orgID'")]
pub(crate) struct Ls {
    #[command(flatten)]
    server: ServerArgs,
}

/// Change the name and limits of an org.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  atoll org set team-a --max-sandboxes 50 --max-timeout 0")]
pub(crate) struct Set {
    /// Id or name of the org.
    org: String,
    /// New name.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    server: ServerArgs,
}

/// Delete orgs with their keys and their history.
///
/// An org that still has sandboxes, and the operator's own org, cannot be deleted.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  atoll org rm team-a")]
pub(crate) struct Rm {
    /// Ids or names.
    #[arg(required = true, value_name = "ORG")]
    orgs: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Org {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Create(create) => create.run(config)?,
            Self::Ls(ls) => ls.run(config)?,
            Self::Set(set) => set.run(config)?,
            Self::Rm(rm) => return rm.run(config),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Limits {
    /// The body of the request, where `null` is no limit.
    fn body(&self, name: Option<&String>) -> Result<Value, Error> {
        let mut body = json!({});
        if let Some(name) = name {
            body["name"] = json!(name);
        }
        if let Some(most) = self.max_sandboxes {
            body["maxSandboxes"] = json!((most > 0).then_some(most));
        }
        if let Some(most) = self.max_timeout {
            let whole = seconds("max-timeout", most)?;
            body["maxTimeout"] = json!((!most.is_zero()).then_some(whole));
        }
        Ok(body)
    }
}

impl Create {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let body = self.limits.body(Some(&self.name))?;
        let made = self.server.remote.with(config, async |client| {
            client.send_json(&Request::post("/orgs", &body)).await
        })?;
        show(&made, self.server.json)
    }
}

impl Set {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let body = self.limits.body(self.name.as_ref())?;
        let changed = self.server.remote.with(config, async |client| {
            let id = find(client, &self.org).await?;
            let request = Request::patch(path(&["orgs", &id]), &body);
            client.send_json(&request).await
        })?;
        show(&changed, self.server.json)
    }
}

fn show(org: &Value, json: bool) -> Result<(), Error> {
    if json {
        return print_json(org);
    }
    print_line(text(org, "orgID"));
    Ok(())
}

impl Ls {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let orgs = self
            .server
            .remote
            .with(config, async |client| client.list("/orgs", &[]).await)?;
        if self.server.json {
            return print_json(&Value::Array(orgs));
        }
        let mut table = borderless_table();
        table.set_header(["ID", "NAME", "SANDBOXES", "LIFETIME", "AGE"]);
        for org in &orgs {
            let most = |name: &str, shown: fn(u64) -> String| {
                org[name].as_u64().map_or_else(|| "-".to_owned(), shown)
            };
            table.add_row([
                text(org, "orgID").to_owned(),
                plain(text(org, "name")),
                most("maxSandboxes", |count| count.to_string()),
                most("maxTimeout", span),
                since(text(org, "createdAt")),
            ]);
        }
        print_line(&table.to_string());
        Ok(())
    }
}

impl Rm {
    /// Deletes the orgs in order; a failure does not stop the others.
    fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let failed = self.remote.with(config, async |client| {
            let mut failed = None;
            for org in &self.orgs {
                match remove(client, org).await {
                    Ok(id) => print_line(&id),
                    Err(error) => {
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

/// Deletes an org by its id or name; returns its id.
async fn remove(client: &Client, org: &str) -> Result<String, Error> {
    let id = find(client, org).await?;
    client
        .send_buffered(&Request::delete(path(&["orgs", &id])))
        .await?;
    Ok(id)
}

/// Looks up the id of an org by id or name.
pub(crate) async fn find(client: &Client, name: &str) -> Result<String, Error> {
    if name.parse::<OrgId>().is_ok() {
        return Ok(name.to_owned());
    }
    let all = client.list("/orgs", &[]).await?;
    let found = all.iter().find(|org| text(org, "name") == name);
    found
        .map(|org| text(org, "orgID").to_owned())
        .ok_or_else(|| {
            Error::new(Code::OrgNotFound, format!("there is no org {name:?}"))
                .remedy("`atoll org ls` lists those that there are")
        })
}
