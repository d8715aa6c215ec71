//! `atoll key`: creates, lists and revokes API keys.

use std::process::ExitCode;
use std::time::Duration;

use atoll_client::{Request, path, query};
use atoll_model::{Error, parse_duration};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::org::find;
use super::sandbox::since;
use super::server_args::{Remote, ServerArgs, plain, print_json, text};
use super::{eprint_line, print_error, print_line};
use crate::cli::borderless_table;
use crate::config::Config;

/// Create, list and revoke API keys of a server.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll key create ci --expires 90d
  atoll key create team-a --org team-a
  atoll key ls
  atoll key rm key_5f2k0v1x9q8w7e6r5t4y")]
pub(crate) enum Key {
    #[command(visible_alias = "new")]
    Create(Create),
    #[command(visible_alias = "list")]
    Ls(Ls),
    #[command(visible_aliases = ["revoke", "delete"])]
    Rm(Rm),
}

/// Scope of a key.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    /// All operations in all orgs.
    Admin,
    /// All operations on the org's sandboxes.
    #[value(name = "sandbox:*")]
    Sandboxes,
    /// Read access to the org's sandboxes.
    #[value(name = "sandbox:read")]
    Read,
}

/// Create a key and print its secret, which is shown only once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll key create laptop
  ATOLL_API_KEY=$(atoll key create ci --expires 90d)
  atoll key create watcher --scope sandbox:read --org team-a")]
pub(crate) struct Create {
    /// Name of the key.
    name: String,
    /// Scope of the key; at most your own.
    #[arg(long, default_value = "sandbox:*", value_name = "SCOPE")]
    scope: Scope,
    /// Time from now after which the key expires [default: never, or with your own].
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    expires: Option<Duration>,
    /// Org of the key, by id or name; orgs other than your own need an admin key.
    #[arg(long, value_name = "ORG")]
    org: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// List keys, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll key ls
  atoll key ls --org team-a --json | jq -r '.[].keyID'")]
pub(crate) struct Ls {
    /// Org of the keys, by id or name [default: your own].
    #[arg(long, value_name = "ORG")]
    org: Option<String>,
    /// Include revoked keys.
    #[arg(long, short)]
    all: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Revoke keys, with immediate effect.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  atoll key rm key_5f2k0v1x9q8w7e6r5t4y")]
pub(crate) struct Rm {
    /// Ids, as `atoll key ls` shows them.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// Org of the keys, by id or name [default: your own].
    #[arg(long, value_name = "ORG")]
    org: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Key {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Create(create) => create.run(config)?,
            Self::Ls(ls) => ls.run(config)?,
            Self::Rm(rm) => return rm.run(config),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Create {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let scope = self.scope.to_possible_value();
        let scope = scope.map(|value| value.get_name().to_owned());
        let mut body = json!({ "name": self.name, "scope": scope });
        if let Some(time) = self.expires {
            let end = Timestamp::now().checked_add(time);
            let end = end.map_err(|_| {
                Error::invalid("expires", "--expires is too far away", "give it like 90d")
            })?;
            body["expiresAt"] = json!(end.to_string());
        }
        let made = self.server.remote.with(config, async |client| {
            if let Some(org) = &self.org {
                body["orgID"] = json!(find(client, org).await?);
            }
            client.send_json(&Request::post("/keys", &body)).await
        })?;
        if self.server.json {
            return print_json(&made);
        }
        print_line(text(&made, "key"));
        eprint_line(&format!(
            "  {} is shown only once: store it in a safe place",
            text(&made, "keyID")
        ));
        Ok(())
    }
}

impl Ls {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let mut keys = self.server.remote.with(config, async |client| {
            let org = match &self.org {
                Some(org) => Some(find(client, org).await?),
                None => None,
            };
            let parameters: Vec<_> = org.iter().map(|org| ("orgID", org.as_str())).collect();
            client.list("/keys", &parameters).await
        })?;
        keys.retain(|key| self.all || key["revokedAt"].is_null());
        if self.server.json {
            return print_json(&Value::Array(keys));
        }
        let mut table = borderless_table();
        table.set_header(["ID", "NAME", "KEY", "SCOPE", "AGE", "LAST USED", "ENDS"]);
        for key in &keys {
            let ago = |name: &str| match text(key, name) {
                "" => "-".to_owned(),
                time => format!("{} ago", since(time)),
            };
            let ends = match (text(key, "revokedAt"), text(key, "expiresAt")) {
                ("", "") => "-",
                ("", end) => end,
                (_, _) => "revoked",
            };
            table.add_row([
                text(key, "keyID").to_owned(),
                plain(text(key, "name")),
                format!("atl_{}…", text(key, "prefix")),
                text(key, "scope").to_owned(),
                since(text(key, "createdAt")),
                ago("lastUsedAt"),
                ends.to_owned(),
            ]);
        }
        print_line(&table.to_string());
        Ok(())
    }
}

impl Rm {
    /// Revokes the keys in order; a failure does not stop the others.
    fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let failed = self.remote.with(config, async |client| {
            let org = match &self.org {
                Some(org) => Some(find(client, org).await?),
                None => None,
            };
            let parameters: Vec<_> = org.iter().map(|org| ("orgID", org.as_str())).collect();
            let mut failed = None;
            for key in &self.keys {
                let request = Request::delete(query(&path(&["keys", key]), &parameters));
                match client.send_buffered(&request).await {
                    Ok(_) => print_line(key),
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
