//! `atoll mcp`: a Model Context Protocol server on standard input and output that gives agents
//! sandboxes as tools. It is a client of an Atoll server, so agents have the rights of its key.
//!
//! Standard output carries the protocol; all other output goes to standard error.

mod command;
mod files;
mod output;
mod sandboxes;
mod session;
mod tools;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Code, Error, parse_duration};
use clap::Args;
use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use rmcp::transport::stdio;
use serde_json::json;

use super::run::Signals;
use super::sandbox::{Size, seconds};
use super::server_args::Remote;
use super::{block_on, eprint_line};
use crate::config::Config;
use session::{SandboxScope, Session};
use tools::Server;

/// Time for which an unreachable server is retried. It is shorter than the usual timeout of agent
/// hosts, one minute.
const AWAY: Duration = Duration::from_secs(30);

/// Serve sandboxes as tools for an agent: a Model Context Protocol server on standard input and
/// output.
///
/// An agent host starts this command. Tool calls that name no sandbox use the session's own, which
/// is created at its first use. Sandboxes that a session created are deleted when it ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll mcp --net internet --timeout 1h
  atoll mcp --sandbox web                    one sandbox that is there, and no other

In the configuration of an agent host:
  {
    \"mcpServers\": {
      \"atoll\": {
        \"command\": \"atoll\",
        \"args\": [\"mcp\"],
        \"env\": {\"ATOLL_URL\": \"http://127.0.0.1:8080\", \"ATOLL_API_KEY\": \"atl_…\"}
      }
    }
  }")]
pub(crate) struct Mcp {
    /// Id, name, or a unique prefix of either: all tools use this sandbox, and no sandbox is
    /// created or deleted.
    #[arg(long, value_name = "SANDBOX", conflicts_with_all = [
        "template", "timeout", "keep", "cpus", "memory", "disk", "pids", "net", "allow", "deny"
    ])]
    sandbox: Option<String>,
    /// Template of new sandboxes unless the agent names another [default: base].
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Lifetime of the sandboxes after a session was killed, or with --keep; 0 is no end.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", default_value = "10m")]
    timeout: Duration,
    /// Keep the sandboxes when the session ends.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    size: Size,
    #[command(flatten)]
    remote: Remote,
}

impl Mcp {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let client = self.remote.client(config)?.max_outage(AWAY);
        let session = Arc::new(Session::new(client, self.whose()?));
        if std::io::stdin().is_terminal() {
            eprint_line(
                "atoll: this waits for an agent host; `atoll mcp --help` shows how to configure one",
            );
        }
        log();
        block_on(async {
            let mut signals = Signals::new()?;
            let done = tokio::select! {
                done = serve(&session) => done,
                _ = signals.next() => Ok(()),
                () = session.renew() => Ok(()),
            };
            session.end(self.keep).await;
            done
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn whose(&self) -> Result<SandboxScope, Error> {
        if let Some(name) = &self.sandbox {
            return Ok(SandboxScope::Given(name.clone()));
        }
        let mut body = self.size.body()?;
        body.insert("timeout".into(), seconds("timeout", self.timeout)?);
        body.extend(
            self.template
                .as_ref()
                .map(|name| ("template".to_owned(), json!(name))),
        );
        Ok(SandboxScope::Own {
            body,
            network: self.size.net,
            timeout: self.timeout,
        })
    }
}

/// Serves the protocol until the host closes it. A command that is running then has a few seconds
/// to end.
async fn serve(session: &Arc<Session>) -> Result<(), Error> {
    let served = Server::new(Arc::clone(session)).serve(stdio()).await;
    let running = match served {
        Ok(running) => running,
        // The host closed the connection before it initialized the session.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => {
            let message = format!("what comes on standard input is not MCP: {error}");
            return Err(Error::new(Code::InvalidRequest, message)
                .remedy("let an agent host start it: `atoll mcp --help`"));
        }
    };
    let waited = running.waiting().await;
    waited.map(drop).map_err(|error| {
        let message = format!("the session broke: {error}");
        Error::new(Code::Internal, message)
    })
}

/// Warnings and errors only, for the host's log: messages of the protocol contain user data.
fn log() {
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(tracing::Level::WARN)
        .try_init();
}
