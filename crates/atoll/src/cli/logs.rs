//! `atoll logs`: output of the commands of a sandbox.

use std::process::ExitCode;

use atoll_client::{Client, Exec, ExecEvent, Request, query};
use atoll_model::{Code, Error};
use clap::Args;
use serde_json::{Value, json};

use super::server_args::{Remote, below, find, text};
use super::{check_stdout, eprint_line, print_bytes, print_line};
use crate::config::Config;

/// Show the output of the commands of a sandbox, one command after the other.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll logs web
  atoll logs web -f
  atoll logs web --json | jq -r 'select(.stream == \"stderr\").text'
  atoll logs web --exec \"$(atoll exec -d web -- make)\" -f")]
pub(crate) struct Logs {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Follow new output.
    #[arg(long, short)]
    follow: bool,
    /// Show the output of this command only.
    #[arg(long, value_name = "EXEC")]
    exec: Option<String>,
    /// Print JSON, one object per line of output.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

impl Logs {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            match &self.exec {
                Some(exec) => self.one(client, &id, exec).await,
                None if self.follow => self.follow(client, &id).await,
                None => self.all(client, &id).await,
            }
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn all(&self, client: &Client, id: &str) -> Result<(), Error> {
        let mut after = None::<String>;
        loop {
            let parameters: Vec<_> = after
                .iter()
                .map(|after| ("after", after.as_str()))
                .collect();
            let path = query(&below(id, &["logs"]), &parameters);
            let answer = client.send_buffered(&Request::get(path)).await?;
            for line in answer.json()?.as_array().into_iter().flatten() {
                self.show(line);
            }
            check_stdout()?;
            match answer.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn follow(&self, client: &Client, id: &str) -> Result<(), Error> {
        let path = query(&below(id, &["logs"]), &[("follow", "true")]);
        let mut events = client.events(Request::get(path));
        while let Some(event) = events.next().await? {
            self.show(&event.data);
            check_stdout()?;
        }
        Ok(())
    }

    /// Copies the exact output of one command; without --follow, up to its current end.
    async fn one(&self, client: &Client, id: &str, exec: &str) -> Result<(), Error> {
        let about = Request::get(below(id, &["commands", exec]));
        let about = client.send_json(&about).await?;
        if !self.follow && text(&about, "state") == "running" {
            let message = format!("{exec} still runs");
            return Err(Error::new(Code::Conflict, message)
                .remedy("follow it to its end with -f, or leave out --exec"));
        }
        let mut exec = Exec::find(client, id, text(&about, "execID"))?;
        loop {
            let (stream, bytes) = match exec.next().await? {
                ExecEvent::Stdout(bytes) => ("stdout", bytes),
                ExecEvent::Stderr(bytes) => ("stderr", bytes),
                ExecEvent::Gap(missing) => {
                    eprint_line(&format!(
                        "atoll: {missing} bytes of output are no longer stored"
                    ));
                    continue;
                }
                ExecEvent::Exit(_) => return Ok(()),
            };
            if self.json {
                let text = String::from_utf8_lossy(&bytes);
                print_line(
                    &json!({ "execID": exec.id, "stream": stream, "text": text }).to_string(),
                );
            } else {
                print_bytes(&bytes);
            }
            check_stdout()?;
        }
    }

    fn show(&self, line: &Value) {
        if self.json {
            return print_line(&line.to_string());
        }
        match text(line, "stream") {
            "stdout" | "stderr" => print_bytes(text(line, "text").as_bytes()),
            "gap" => eprint_line("atoll: a part of the output is no longer stored"),
            _ => {}
        }
    }
}
