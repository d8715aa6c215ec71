//! `atoll serve`: sandboxes over HTTP. Ending it leaves them running; the next one goes on with them.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

use atoll_core::{Core, KeyRequest, Signer};
use atoll_model::{Code, Error, RequestId, Scope};
use atoll_server::{Access, Config as ServerConfig};
use atoll_store::Store;
use atoll_worker::{Config as RuntimeConfig, LocalRuntime};
use axum::serve::ListenerExt as _;
use clap::{Args, ValueEnum};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::run::ensure_base;
use super::{note, paint, say};
use crate::config::Config;

/// Serve sandboxes over HTTP.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll serve                           on 127.0.0.1:8080; the first start makes a key: admin.key in the data directory
  atoll serve --dev                     without keys, on this machine only
  atoll serve --listen 0.0.0.0:8080 --host sandboxes.example.com")]
pub(crate) struct Serve {
    /// Where to listen.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<std::path::PathBuf>,
    /// Let everybody on this machine in, without keys.
    #[arg(long)]
    dev: bool,
    /// A name by which browsers may ask for this server; may be given again.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// A page's origin that may use this server from browsers; may be given again.
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// What happens to sandboxes when this server ends.
    #[arg(long, value_enum, default_value_t = OnExit::Keep)]
    on_exit: OnExit,
}

/// What happens to sandboxes when their server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnExit {
    /// They go on.
    Keep,
    /// They are deleted.
    Destroy,
}

impl Serve {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        atoll_worker::check_host()?;
        let mut config = config.clone();
        if let Some(data) = &self.data_dir {
            config.data.clone_from(data);
        }
        if self.dev && !self.listen.ip().is_loopback() {
            return Err(Error::invalid(
                "dev",
                format!(
                    "--dev lets everybody in, and {} is not loopback",
                    self.listen
                ),
                "leave --dev out, or listen on 127.0.0.1",
            ));
        }
        ensure_base(&config)?;
        log();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .on_thread_start(|| {
                // Answers although sandboxes take all processor time they can get.
                atoll_jail::go_before_others();
            })
            .build();
        let runtime = runtime.map_err(|error| failed("start threads", &error))?;
        runtime.block_on(self.serve(&config))?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(&self, config: &Config) -> Result<(), Error> {
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            Error::new(
                Code::Conflict,
                format!("cannot listen on {}: {error}", self.listen),
            )
            .remedy("choose another place with --listen ADDR:PORT")
        })?;
        let at = listener
            .local_addr()
            .map_err(|error| failed("ask for the port", &error))?;
        let sandboxes = RuntimeConfig {
            storage: config.storage,
            templates: config.templates(),
            ..RuntimeConfig::serving(&config.data)
        };
        let sandboxes = LocalRuntime::open(sandboxes).await?;
        let store = Store::open(&config.data.join("atoll.db"))
            .await
            .map_err(|error| {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                Error::new(
                    Code::Internal,
                    format!("{error}: {}", cause.unwrap_or_default()),
                )
            })?;
        let core = Core::open(store, sandboxes, signer(&config.data)?).await?;
        let socket = operators_socket(&config.data)?;
        self.greet(&core, config, at).await?;

        let (stop, stopped) = watch::channel(false);
        let open = atoll_server::router(core.clone(), self.rules(Access::Open));
        let access = if self.dev { Access::Open } else { Access::Keys };
        let public = atoll_server::router(core.clone(), self.rules(access));
        let until = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let public = axum::serve(listener, public).with_graceful_shutdown(until(stopped.clone()));
        let operator = axum::serve(socket, open).with_graceful_shutdown(until(stopped));
        let public = tokio::spawn(async move { public.await });
        let operator = tokio::spawn(async move { operator.await });
        asked_to_end().await?;
        note("ending: requests under way are finished, sandboxes go on");
        let _ = stop.send(true);
        let both = async {
            let _ = public.await;
            let _ = operator.await;
        };
        // A stream has no end of its own: its client goes on at the next server.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), both).await;
        if self.on_exit == OnExit::Destroy {
            core.delete_all().await?;
        }
        core.close().await
    }

    fn rules(&self, access: Access) -> ServerConfig {
        ServerConfig {
            access,
            hosts: self
                .host
                .iter()
                .map(|host| host.to_ascii_lowercase())
                .collect::<BTreeSet<_>>(),
            origins: self.cors_origin.iter().cloned().collect(),
            domains: BTreeSet::new(),
        }
    }

    /// Makes the first key at the first start, and says how to begin.
    async fn greet(&self, core: &Core, config: &Config, at: SocketAddr) -> Result<(), Error> {
        let file = config.data.join("admin.key");
        let url = format!("http://{at}");
        if !file.exists() {
            let operator = core.operator(RequestId::random()).await?;
            let request = KeyRequest {
                name: "admin".into(),
                scope: Scope::Admin,
                expires_at: None,
            };
            let made = core.make_key(&operator, request).await?;
            write_key(&file, &made.secret)?;
            if std::io::stdout().is_terminal() {
                say(&format!("key      {}", made.secret));
            }
        }
        say(&format!("serving  {}", paint("36", &url)));
        say(&format!("data     {}", config.data.display()));
        if self.dev {
            say(&format!(
                "{}  everybody on this machine may do everything (--dev)",
                paint("33", "open")
            ));
            say(&format!("try      curl -s -X POST {url}/sandboxes"));
        } else {
            say(&format!(
                "try      curl -s -X POST -H \"X-API-Key: $(cat {})\" {url}/sandboxes",
                file.display()
            ));
        }
        if !at.ip().is_loopback() {
            note(&format!(
                "{}: keys cross the network unencrypted: put TLS in front",
                paint("33", "warning")
            ));
        }
        Ok(())
    }
}

/// Whole or not at all, and for root alone.
fn write_key(file: &Path, secret: &str) -> Result<(), Error> {
    let new = file.with_extension("key.new");
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new);
    let written = opened.and_then(|mut opened| opened.write_all(format!("{secret}\n").as_bytes()));
    written
        .and_then(|()| std::fs::rename(&new, file))
        .map_err(|error| failed(&format!("write {}", file.display()), &error))
}

/// What signs links, with a secret that is made at the first start.
fn signer(data: &Path) -> Result<Signer, Error> {
    let file = data.join("signing.key");
    if !file.exists() {
        write_key(&file, &atoll_core::random_digits())?;
    }
    let secret = std::fs::read_to_string(&file);
    Signer::new(
        secret
            .map_err(|error| failed("read signing.key", &error))?
            .trim(),
    )
}

/// The same API with all rights, for whoever can open it: root on this machine.
fn operators_socket(data: &Path) -> Result<UnixListener, Error> {
    let path = data.join("run/api.sock");
    // The data directory is locked by us: what is there is a dead server's.
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).map_err(|error| failed("make the operator's socket", &error))?;
    let permissions = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, permissions)
        .map_err(|error| failed("protect the operator's socket", &error))?;
    Ok(listener)
}

async fn asked_to_end() -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| failed("hear signals", &error))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|error| failed("hear signals", &error))?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Logs to standard error: for people on a terminal, for programs otherwise.
fn log() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::new("info");
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter);
    if std::io::stderr().is_terminal() {
        let _ = builder.with_target(false).try_init();
    } else {
        let _ = builder
            .json()
            .flatten_event(true)
            .with_target(false)
            .try_init();
    }
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::new(Code::Internal, format!("cannot {what}: {error}"))
}
