//! `atoll forward`: ports of this machine that lead to ports of a sandbox.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use atoll_client::{Client, Request};
use atoll_model::{Code, Error};
use clap::Args;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use super::server_args::{Remote, below, find};
use super::{eprint_line, say};
use crate::config::Config;

/// When nobody can be let in, the next try is so much later.
const PAUSE: Duration = Duration::from_millis(100);

/// Let ports of this machine lead to ports of a sandbox.
///
/// Servers that listen on the sandbox's loopback alone are reached too. What listens here is told in a line each.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll forward web 8000               127.0.0.1:8000 here is 8000 there
  atoll forward web 8080:80 5432:5432
  atoll forward web 0:80 --json        a free port, which is told")]
pub(crate) struct Forward {
    /// Id, name, or the beginning of one.
    sandbox: String,
    /// LOCAL:REMOTE, or one number for both.
    #[arg(required = true, value_name = "LOCAL:REMOTE")]
    ports: Vec<Ports>,
    /// Where to listen on this machine.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Print JSON, a line a port.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

/// From which port to which.
#[derive(Debug, Clone, Copy)]
struct Ports {
    local: u16,
    remote: u16,
}

impl FromStr for Ports {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(
                "ports",
                format!("{text:?} names no two ports"),
                "write them as LOCAL:REMOTE, such as 8080:80, or as one",
            )
        };
        let (local, remote) = text.split_once(':').unwrap_or((text, text));
        let ports = Self {
            local: local.parse().map_err(|_| wrong())?,
            remote: remote.parse().map_err(|_| wrong())?,
        };
        (ports.remote != 0).then_some(ports).ok_or_else(wrong)
    }
}

impl Forward {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.remote.with(config, async |client| {
            let sandbox = find(client, &self.sandbox).await?;
            // That it is there is known before somebody connects.
            client.call(&Request::get(below(&sandbox, &[]))).await?;
            let mut listeners = Vec::new();
            for ports in &self.ports {
                let listener = self.listen(ports.local).await?;
                let at = listener
                    .local_addr()
                    .map_err(|error| busy(ports.local, &error))?;
                if self.json {
                    say(&json!({ "local": at.to_string(), "port": ports.remote }).to_string());
                } else {
                    say(&format!("{at} → {}:{}", self.sandbox, ports.remote));
                }
                listeners.push((listener, ports.remote));
            }
            let all = listeners
                .iter()
                .map(|(listener, port)| serve(client, &sandbox, listener, *port));
            futures_util::future::try_join_all(all).await?;
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn listen(&self, port: u16) -> Result<TcpListener, Error> {
        let listener = TcpListener::bind(SocketAddr::new(self.address, port)).await;
        listener.map_err(|error| busy(port, &error))
    }
}

fn busy(port: u16, error: &std::io::Error) -> Error {
    let message = format!("cannot listen on port {port}: {error}");
    Error::new(Code::Conflict, message).remedy("choose another: LOCAL:REMOTE; 0 is a free one")
}

/// Takes connections until somebody ends us.
async fn serve(
    client: &Client,
    sandbox: &str,
    listener: &TcpListener,
    port: u16,
) -> Result<(), Error> {
    let path = below(sandbox, &["ports", &port.to_string(), "tunnel"]);
    let mut open = futures_util::stream::FuturesUnordered::new();
    loop {
        tokio::select! {
            stream = accept(listener) => open.push(join(client, &path, stream)),
            Some(()) = futures_util::StreamExt::next(&mut open) => {}
        }
    }
}

/// Somebody who comes. One who is gone already is no trouble; one for whom there is no room waits until there is.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// One connection; that it fails ends nothing else.
async fn join(client: &Client, path: &str, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let joined = match client.socket(path).await {
        Ok(socket) => socket.join(stream).await,
        Err(failure) => Err(failure.into()),
    };
    if let Err(error) = joined {
        eprint_line(&format!("atoll: {}", error.message));
    }
}
