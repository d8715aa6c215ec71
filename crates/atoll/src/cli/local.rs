//! Commands that act on this machine instead of a server: some always, some unless a server is configured.

use atoll_client::Client;
use atoll_model::Error;
use clap::Args;

use super::server_args::Remote;
use crate::config::Config;

/// The flag of a command that acts on this machine only.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Local {
    /// Act on this machine although `ATOLL_URL`, `ATOLL_API_KEY` or `atoll login` selects a server.
    #[arg(long)]
    local: bool,
}

impl Local {
    /// Returns an error if a server is configured, because the user may expect the command to act
    /// on it.
    pub(crate) fn require(self, command: &str, config: &Config) -> Result<(), Error> {
        if self.local {
            return Ok(());
        }
        let remote = Remote::default();
        let Some(client) = remote.configured(config)? else {
            return Ok(());
        };
        let (source, remedy) = if config.url.is_some() {
            ("ATOLL_URL", "unset ATOLL_URL, or pass --local")
        } else if remote.place(config)?.is_none() {
            ("ATOLL_API_KEY", "unset ATOLL_API_KEY, or pass --local")
        } else {
            ("the default profile of `atoll login`", "pass --local")
        };
        let message = format!(
            "`atoll {command}` acts on this machine only, and {source} is for the server {}",
            client.target()
        );
        Err(Error::invalid("local", message, remedy))
    }
}

/// The flags of a command that acts on a server if one is configured, else on this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct LocalOrRemote {
    /// Act on this machine even if a server is configured.
    #[arg(long, conflicts_with_all = ["url", "profile"])]
    local: bool,
    #[command(flatten)]
    remote: Remote,
}

impl LocalOrRemote {
    /// The server to act on; `None` is this machine.
    pub(crate) fn client(&self, config: &Config) -> Result<Option<Client>, Error> {
        if self.local {
            return Ok(None);
        }
        self.remote.configured(config)
    }
}
