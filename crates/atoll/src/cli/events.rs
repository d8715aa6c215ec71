//! `atoll events`: events of sandboxes.

use std::process::ExitCode;

use atoll_client::{Client, Request, query};
use atoll_model::Error;
use clap::Args;
use serde_json::Value;

use super::server_args::{Remote, below, find, plain, text};
use super::{check_stdout, print_line};
use crate::config::Config;

/// Show events of your sandboxes as they happen, or the past events of one sandbox.
///
/// Without a sandbox, the command follows new events until it is interrupted. No event is lost if
/// the connection breaks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll events
  atoll events --after 0 --json       all stored events, then new ones
  atoll events web                    past events of one sandbox
  atoll events web -f")]
pub(crate) struct Events {
    /// Id, name, or a unique prefix of either.
    sandbox: Option<String>,
    /// Follow new events.
    #[arg(long, short)]
    follow: bool,
    /// Start after the event with this number.
    #[arg(long, value_name = "N")]
    after: Option<i64>,
    /// Print JSON, one line per event.
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
            let path = below(&id, &["events"]);
            let last = print_past(client, &path, self.after.unwrap_or(0), self.json).await?;
            if self.follow {
                self.follow(client, Some(&id), Some(last)).await?;
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn follow(
        &self,
        client: &Client,
        id: Option<&str>,
        after: Option<i64>,
    ) -> Result<(), Error> {
        let after = after.map(|after| after.to_string());
        let parameters: Vec<_> = after
            .iter()
            .map(|after| ("after", after.as_str()))
            .collect();
        let mut events = client.events(Request::get(query("/events", &parameters)));
        while let Some(event) = events.next().await? {
            if id.is_none_or(|id| text(&event.data, "sandboxID") == id) {
                print(&event.data, self.json);
            }
            check_stdout()?;
        }
        Ok(())
    }
}

/// Prints the past events after a number, page by page; returns the number of the last one.
pub(crate) async fn print_past(
    client: &Client,
    path: &str,
    after: i64,
    json: bool,
) -> Result<i64, Error> {
    let mut last = after;
    loop {
        let path = query(path, &[("after", &last.to_string())]);
        let events = client.send_json(&Request::get(path)).await?;
        let events = events.as_array().map(Vec::as_slice).unwrap_or_default();
        for event in events {
            last = event["number"].as_i64().unwrap_or(last);
            print(event, json);
        }
        check_stdout()?;
        if events.is_empty() {
            return Ok(last);
        }
    }
}

/// Prints an event: as JSON, or a line for people.
pub(crate) fn print(event: &Value, json: bool) {
    if json {
        return print_line(&event.to_string());
    }
    let (at, id) = (text(event, "at"), text(event, "sandboxID"));
    let mut line = format!("{at}  {id}  {:<16}", plain(text(event, "type")));
    // Name and reason of the event; the other fields are for programs.
    for name in ["alias", "reason", "error"] {
        let word = plain(text(&event["data"], name));
        if !word.is_empty() {
            line = format!("{line}  {word}");
        }
    }
    print_line(line.trim_end());
}
