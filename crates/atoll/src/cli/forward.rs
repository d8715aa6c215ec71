//! `atoll forward`: forwards ports of this machine to ports of a sandbox.

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
use super::{eprint_line, print_line};
use crate::config::Config;

/// Delay after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(100);

/// Forward ports of this machine to ports of a sandbox.
///
/// Servers that listen only on the sandbox's loopback are reached too. One line per forwarded port
/// is printed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll forward web 8000               127.0.0.1:8000 here is 8000 there
  atoll forward web 8080:80 5432:5432
  atoll forward web 0:80 --json        a free port, which is printed")]
pub(crate) struct Forward {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// LOCAL:REMOTE, or one port number for both.
    #[arg(required = true, value_name = "LOCAL:REMOTE")]
    ports: Vec<Ports>,
    /// Address of this machine to listen on.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Print JSON, one line per port.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Local and remote port.
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
            // Check that the sandbox exists before the first client connects.
            client
                .send_json(&Request::get(below(&sandbox, &[])))
                .await?;
            let mut listeners = Vec::new();
            for ports in &self.ports {
                let listener = self.listen(ports.local).await?;
                let at = listener
                    .local_addr()
                    .map_err(|error| busy(ports.local, &error))?;
                if self.json {
                    print_line(
                        &json!({ "local": at.to_string(), "port": ports.remote }).to_string(),
                    );
                } else {
                    print_line(&format!("{at} → {}:{}", self.sandbox, ports.remote));
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

/// Accepts connections until the process is terminated.
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

/// Accepts one connection. Connections that were closed already are skipped; while the process is
/// out of descriptors, `accept` is retried.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Forwards one connection; its failure does not affect others.
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
