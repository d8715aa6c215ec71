//! `atoll history`: commands and events of sandboxes, including deleted ones.

use std::process::ExitCode;

use atoll_client::{Client, Request, path, query};
use atoll_model::{Code, Error, SandboxId};
use clap::Args;
use serde_json::Value;

use super::sandbox::{since, state};
use super::server_args::{ServerArgs, plain, print_each, print_json, text};
use super::{commands, events, print_line};
use crate::cli::borderless_table;
use crate::config::Config;

/// Maximum page size of the API.
const PAGE: usize = 100;

/// List all past and present sandboxes, or the commands of one of them.
///
/// Deleted sandboxes are listed too. The output of commands is kept only while the sandbox exists: `atoll logs` shows it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll history
  atoll history web                  its commands and terminals, newest first
  atoll history web --events         when it was created, stopped, deleted …
  atoll history i5f2 --json | jq -r '.[] | [.startedAt, .exitCode, .cmd] | @tsv'")]
pub(crate) struct History {
    /// Id, name, prefix of an id, or id of a session. If several sandboxes had the name, the newest
    /// is shown.
    sandbox: Option<String>,
    /// Show the events of the sandbox, oldest first, instead of its commands.
    #[arg(long, requires = "sandbox", conflicts_with_all = ["quiet", "limit"])]
    events: bool,
    /// Maximum number of entries; 0 is all.
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N")]
    limit: usize,
    /// Print only ids.
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl History {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.server.remote.with(config, async |client| {
            let Some(name) = &self.sandbox else {
                return self.list(client).await;
            };
            let session = find(client, name).await?;
            if self.events {
                let path = path(&["sessions", &session, "events"]);
                events::print_past(client, &path, 0, self.server.json).await?;
                return Ok(());
            }
            let mut all = Vec::new();
            for kind in ["commands", "terminals"] {
                let path = path(&["sessions", &session, kind]);
                all.extend(newest(client, &path, self.limit).await?);
            }
            all.sort_by(|one, other| text(other, "startedAt").cmp(text(one, "startedAt")));
            all.truncate(most(self.limit));
            commands::show(&all, self.quiet, self.server.json)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn list(&self, client: &Client) -> Result<(), Error> {
        let all = newest(client, "/sessions", self.limit).await?;
        if self.server.json {
            return print_json(&Value::Array(all));
        }
        if self.quiet {
            print_each(&all, "sandboxID");
            return Ok(());
        }
        let mut table = borderless_table();
        table.set_header(["ID", "NAME", "STATE", "TEMPLATE", "CREATED", "DELETED"]);
        for session in &all {
            let ago = |field: &str| match text(session, field) {
                "" => "-".to_owned(),
                time => format!("{} ago", since(time)),
            };
            let state = match text(session, "deletedAt") {
                "" => state(session),
                _ => "deleted".to_owned(),
            };
            table.add_row([
                text(session, "sandboxID").to_owned(),
                plain(text(session, "alias")),
                state,
                plain(text(session, "templateID")),
                ago("createdAt"),
                ago("deletedAt"),
            ]);
        }
        print_line(&table.to_string());
        Ok(())
    }
}

/// The limit of the command line, where 0 is no limit.
fn most(limit: usize) -> usize {
    if limit == 0 { usize::MAX } else { limit }
}

/// Fetches the first entries of a list, with as few pages as possible.
async fn newest(client: &Client, path: &str, limit: usize) -> Result<Vec<Value>, Error> {
    let most = most(limit);
    let page = most.min(PAGE).to_string();
    let (mut all, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let parameters = cursor.as_deref().map(|cursor| ("cursor", cursor));
        let parameters: Vec<_> = [("limit", page.as_str())]
            .into_iter()
            .chain(parameters)
            .collect();
        let answer = client
            .send_buffered(&Request::get(query(path, &parameters)))
            .await?;
        if let Value::Array(part) = answer.json()? {
            all.extend(part);
        }
        match answer.next {
            Some(next) if all.len() < most => cursor = Some(next),
            _ => break,
        }
    }
    all.truncate(most);
    Ok(all)
}

/// The id of the sandbox or session with this name; deleted sandboxes are included.
async fn find(client: &Client, name: &str) -> Result<String, Error> {
    let request = Request::get(path(&["sessions", name]));
    let is_id = name.parse::<SandboxId>().is_ok();
    if !name.is_empty() {
        match client.send_json(&request).await {
            Ok(_) => return Ok(name.to_owned()),
            Err(error) if error.code != Code::SessionNotFound || is_id => return Err(error),
            Err(_) => {}
        }
    }
    let all = newest(client, "/sessions", 0).await?;
    choose(&all, name)
}

/// The newest sandbox of this name, or the only one whose id has this prefix.
fn choose(all: &[Value], name: &str) -> Result<String, Error> {
    let id = |session: &Value| text(session, "sandboxID").to_owned();
    let is_named = |session: &&Value| !name.is_empty() && text(session, "alias") == name;
    if let Some(named) = all.iter().find(is_named) {
        return Ok(id(named));
    }
    let begins = |session: &&Value| !name.is_empty() && id(session).starts_with(name);
    let found: Vec<&Value> = all.iter().filter(begins).collect();
    match found.as_slice() {
        [one] => Ok(id(one)),
        [] => Err(Error::new(
            Code::SessionNotFound,
            format!("the history has no sandbox {name:?}"),
        )
        .remedy("`atoll history` lists those that it has")),
        several => {
            let message = format!(
                "{} sandboxes of the history begin with {name:?}",
                several.len()
            );
            let remedy = "give more of the id: `atoll history` lists them";
            Err(Error::invalid("sandbox", message, remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use super::*;
    use serde_json::json;

    #[test]
    fn name_selects_the_newest_and_id_prefix_must_be_unique() {
        let all = [
            json!({ "sandboxID": "iaaa1", "alias": "web" }),
            json!({ "sandboxID": "iaaa2" }),
            json!({ "sandboxID": "ib000", "alias": "web" }),
        ];
        assert_eq!(choose(&all, "web").unwrap(), "iaaa1");
        assert_eq!(choose(&all, "ib").unwrap(), "ib000");
        for (name, code) in [
            ("ia", Code::InvalidRequest),
            ("x", Code::SessionNotFound),
            ("", Code::SessionNotFound),
        ] {
            assert_eq!(choose(&all, name).unwrap_err().code, code, "{name}");
        }
    }
}
