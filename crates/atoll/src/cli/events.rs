//! `atoll events`: what happens to sandboxes.

use std::process::ExitCode;

use atoll_client::{Client, Request, query};
use atoll_model::Error;
use clap::Args;
use serde_json::Value;

use super::server_args::{Remote, below, find, plain, text};
use super::{check_stdout, say};
use crate::config::Config;

/// Tell what happens to your sandboxes, or what happened to one.
///
/// Without a sandbox it goes on until it is ended, and begins with what happens now. No event is missed if the connection
/// breaks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll events
  atoll events --after 0 --json       everything that is remembered, then what happens
  atoll events web                    what happened to one
  atoll events web -f")]
pub(crate) struct Events {
    /// Id, name, or the beginning of one.
    sandbox: Option<String>,
    /// Go on with what happens now.
    #[arg(long, short)]
    follow: bool,
    /// Begin behind this number.
    #[arg(long, value_name = "N")]
    after: Option<i64>,
    /// Print JSON, a line an event.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

impl Events {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.remote.with(config, async |client| {
            let Some(sandbox) = &self.sandbox else {
                return self.follow(client, None, self.after).await;
            };
            let id = find(client, sandbox).await?;
            let last = self.list(client, &id).await?;
            if self.follow {
                self.follow(client, Some(&id), Some(last)).await?;
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// What happened to one; the number of the last.
    async fn list(&self, client: &Client, id: &str) -> Result<i64, Error> {
        let mut last = self.after.unwrap_or(0);
        loop {
            let after = last.to_string();
            let path = query(&below(id, &["events"]), &[("after", &after)]);
            let events = client.call(&Request::get(path)).await?;
            let events = events.as_array().map(Vec::as_slice).unwrap_or_default();
            for event in events {
                last = event["number"].as_i64().unwrap_or(last);
                print(event, self.json);
            }
            check_stdout()?;
            if events.is_empty() {
                return Ok(last);
            }
        }
    }

    async fn follow(
        &self,
        client: &Client,
        id: Option<&str>,
        after: Option<i64>,
    ) -> Result<(), Error> {
        let after = after.map(|after| after.to_string());
        let asked: Vec<_> = after
            .iter()
            .map(|after| ("after", after.as_str()))
            .collect();
        let mut events = client.events(Request::get(query("/events", &asked)));
        while let Some(event) = events.next().await? {
            if id.is_none_or(|id| text(&event.data, "sandboxID") == id) {
                print(&event.data, self.json);
            }
            check_stdout()?;
        }
        Ok(())
    }
}

/// Prints an event: as JSON, or a line for people.
pub(crate) fn print(event: &Value, json: bool) {
    if json {
        return say(&event.to_string());
    }
    let (at, id) = (text(event, "at"), text(event, "sandboxID"));
    let mut line = format!("{at}  {id}  {:<16}", plain(text(event, "type")));
    // What it is called, and why that happened; the rest is for programs.
    for name in ["alias", "reason", "error"] {
        let word = plain(text(&event["data"], name));
        if !word.is_empty() {
            line = format!("{line}  {word}");
        }
    }
    say(line.trim_end());
}
