//! `atoll serve`: the server. Sandboxes keep running when it exits, and the next server adopts
//! them.

pub(crate) mod database;
mod descriptors;
pub(crate) mod exceptions;
mod observability;
mod problems;
mod retry_bind;
mod settings;
mod static_key;
pub(crate) mod storage;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use atoll_core::{Core, KeyRequest, Signer};
use atoll_model::{Code, Error, InstanceId, RequestId, Scope};
use atoll_server::{AuthMode, Config as ServerConfig, HttpMetrics, Listener, Tls};
use atoll_store::Store;
use atoll_worker::instance::DataLock;
use atoll_worker::{Config as RuntimeConfig, network};
use clap::Args;
use rustix::fs::Mode;
use rustix::net::sockopt;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::run::ensure_base;
use super::{authorities, eprint_line, paint, print_line};
use crate::config::Config;
use crate::wiring;
use database::Unknown;
use descriptors::{Share, Shares};
use problems::Problems;
use settings::{OnExit, ResolvedSettings, Settings};

/// File in the data directory with the URL of the running server.
pub(crate) const PLACE: &str = "run/url";

/// Serve sandboxes over HTTP.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll serve                           on 127.0.0.1:8080; the first start makes a key: admin.key in the data directory
  atoll serve --dev                     without keys, on this machine only
  atoll serve --database-url postgres://atoll@db.example.com/atoll?sslmode=verify-full    rows in PostgreSQL
  atoll serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --host sandboxes.example.com
  atoll serve --egress-allow 10.1.2.3:443 --ca-file company.pem    sandboxes reach and trust the company's registry
  atoll serve --print-config > atoll.toml; atoll serve --config atoll.toml")]
pub(crate) struct Serve {
    #[command(flatten)]
    settings: Settings,
    /// TOML file with the same settings: `listen = "127.0.0.1:8080"`. Options on the command line
    /// take precedence.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print all settings in the format of the TOML file, and exit.
    #[arg(long)]
    print_config: bool,
    /// Start although the database is missing or belongs to another instance, and adopt sandboxes
    /// that have no row: they are assigned to the first org, without a timeout. Applies to one
    /// start.
    #[arg(long)]
    adopt_orphans: bool,
}

impl Serve {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let file = self.config.as_deref().map(Settings::read).transpose()?;
        let all = self.settings.clone().or(file.unwrap_or_default());
        let mut all = all.or(Settings::usual(&config.data));
        all.storage = all.storage.or(config.storage);
        all.database_url = match (all.database_url, &config.database_url) {
            (None, Some(url)) => Some(url.parse()?),
            (url, _) => url,
        };
        let mut settings = all.clone().complete()?;
        if self.print_config {
            print_line(all.to_toml()?.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        let mut problems = Problems::default();
        let key = settings.static_key.take();
        let key = key.map(|(file, org)| static_key::read(&file, org));
        settings.rules.static_key = problems.check(key.transpose()).flatten();
        let tls = settings.tls.as_ref();
        let tls = tls.map(|(certificate, key)| Tls::load(certificate, key));
        let tls = problems.check(tls.transpose()).flatten();
        let authorities = problems.check(authorities::read(&settings.authorities));
        problems.check(atoll_worker::check_host());
        problems.finish()?;
        let authorities = authorities.unwrap_or_default();
        // The server's own files are accessible to root only. Files of sandboxes and templates get
        // their modes explicitly.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let mut config = config.clone();
        config.data.clone_from(&settings.data);
        settings.rules.adopt_orphans = self.adopt_orphans;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .on_thread_start(|| {
                // The server must respond while sandboxes use all available CPU time.
                atoll_jail::raise_thread_priority();
            })
            .build();
        let runtime = runtime.map_err(|error| failed("start threads", &error))?;
        let lock = runtime.block_on(settings.lock())?;
        ensure_base(&config)?;
        settings.watching.log();
        runtime.block_on(settings.serve(&config, lock, tls, authorities))?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }
}

impl ResolvedSettings {
    /// Locks the data directory and checks its database before anything else.
    async fn lock(&self) -> Result<DataLock, Error> {
        let lock = retry_bind::lock(&self.data).await?;
        let unknown = if self.rules.adopt_orphans {
            Unknown::Adopt
        } else {
            Unknown::Refuse
        };
        database::Location::new(&self.data, self.database.as_ref())
            .check(unknown)
            .await?;
        Ok(lock)
    }

    async fn serve(
        &self,
        config: &Config,
        lock: DataLock,
        tls: Option<Tls>,
        authorities: Vec<String>,
    ) -> Result<(), Error> {
        let listener = retry_bind::listen(self.listen, retry_bind::RETRY_TIMEOUT).await;
        let listener = listener.map_err(|error| {
            Error::new(
                Code::Conflict,
                format!("cannot listen on {}: {error}", self.listen),
            )
            .remedy("choose another place with --listen ADDR:PORT")
        })?;
        enable_tcp_keepalive(&listener).map_err(|error| failed("set up the listener", &error))?;
        let metrics = self.watching.metrics_listener().await?;
        let at = listener
            .local_addr()
            .map_err(|error| failed("ask for the port", &error))?;
        let serving = RuntimeConfig::serving(&config.data);
        let sandboxes = RuntimeConfig {
            storage: storage::choose(self.storage, &config.data),
            templates: config.templates(),
            reserve: self.reserve,
            max_limits: self.ceilings,
            network: network::Config {
                exceptions: self.exceptions.clone().into(),
                ..network::Config::default()
            },
            authorities,
            output_window: self.window.unwrap_or(serving.output_window),
            ..serving
        };
        // Before the runtime: if the database cannot be opened, the sandboxes are not touched.
        let database = database::Location::new(&config.data, self.database.as_ref());
        let store = open_store(&config.data, database).await?;
        let sandboxes = RuntimeConfig {
            acknowledged: database.acknowledged(&store).await?,
            ..sandboxes
        };
        let signer = signer(&config.data)?;
        let (core, opening) =
            wiring::combined(store, sandboxes, lock, signer, self.rules.clone()).await?;
        let socket = operators_socket(&config.data)?;
        let http_metrics = HttpMetrics::default();
        if let Some(metrics) = &metrics {
            observability::print_metrics_address(metrics)?;
        }
        // Before the server announces its address: signals that arrive right after that are
        // handled.
        let signals = Signals::listen()?;
        exceptions::record(&config.data, &self.exceptions)?;
        let place = config.data.join(PLACE);
        write_atomic(&place, &self.url(at))?;
        self.print_startup(&core, config, at).await?;

        let (stop, stopped) = watch::channel(false);
        let exporter = atoll_server::exporter(&core, &http_metrics, self.hosts());
        let open = atoll_server::router(
            core.clone(),
            http_metrics.clone(),
            self.server_config(AuthMode::Trusted),
        );
        let auth = if self.dev {
            AuthMode::Trusted
        } else {
            AuthMode::ApiKeys
        };
        let public = atoll_server::router(core.clone(), http_metrics, self.server_config(auth));
        let listening = match tls.clone() {
            Some(tls) => Listener::Tls(listener, tls),
            None => Listener::Plain(listener),
        };
        let shares = Shares::fit(self.limits.max_connections);
        let serve = |listening, router, share: Share| {
            let limits = share.of(self.limits);
            let stopped = stopped.clone();
            tokio::spawn(atoll_server::serve(listening, router, limits, stopped))
        };
        let (public, operator) = (
            serve(listening, public, shares.public),
            serve(Listener::Unix(socket), open, shares.operator),
        );
        if let Some(metrics) = metrics {
            serve(Listener::Plain(metrics), exporter, shares.metrics);
        }
        drop(opening);
        signals.wait_for_shutdown(tls.as_ref()).await;
        eprint_line(match self.on_exit {
            OnExit::Keep => "ending: requests under way are finished, sandboxes go on",
            OnExit::Destroy => "ending: requests under way are finished, sandboxes are deleted",
        });
        core.begin_shutdown();
        let _ = stop.send(true);
        let both = async {
            let _ = public.await;
            let _ = operator.await;
        };
        let _ = std::fs::remove_file(place);
        // Streams are endless; their clients reconnect to the next server.
        let _ = tokio::time::timeout(Duration::from_secs(5), both).await;
        let deleted = match self.on_exit {
            OnExit::Destroy => core.delete_all().await,
            OnExit::Keep => Ok(()),
        };
        core.close().await.and(deleted)
    }

    /// URL for clients on this machine; with TLS, the certificate is valid for host names only.
    fn url(&self, at: SocketAddr) -> String {
        let port = at.port();
        if self.tls.is_some() {
            let name = self.hosts.first().map_or("localhost", String::as_str);
            return format!("https://{name}:{port}");
        }
        let here = match at.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        format!("http://{}", SocketAddr::new(here, port))
    }

    fn hosts(&self) -> BTreeSet<String> {
        let lower = self.hosts.iter().map(|host| host.to_ascii_lowercase());
        lower.collect()
    }

    fn server_config(&self, auth: AuthMode) -> ServerConfig {
        ServerConfig {
            auth,
            hosts: self.hosts(),
            origins: self.origins.iter().cloned().collect(),
            domains: self.domains.iter().cloned().collect(),
        }
    }

    /// Creates the first admin key, unless `admin.key` contains a key of this database or an admin
    /// key was ever used: an operator who deletes the file after that wants no new key. Prints how
    /// to begin.
    async fn print_startup(
        &self,
        core: &Core,
        config: &Config,
        at: SocketAddr,
    ) -> Result<(), Error> {
        let file = config.data.join("admin.key");
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{at}");
        if !core.has_admin_key().await? && !is_known(core, &file).await? {
            retire_key(&config.data)?;
            let operator = core.operator(RequestId::random()).await?;
            let request = KeyRequest {
                org: None,
                name: "admin".into(),
                scope: Scope::Admin,
                expires_at: None,
            };
            let made = core.create_key(&operator, request).await?;
            // After a power failure the file must not contain a key that the database lost.
            core.sync().await?;
            write_atomic(&file, &made.secret)?;
            if std::io::stdout().is_terminal() {
                print_line(&format!("key      {}", made.secret));
            }
        }
        // Before the line that scripts wait for, so that a reader of that line has seen the
        // warnings too.
        let warn = |text: &str| eprint_line(&format!("{}: {text}", paint("33", "warning")));
        if self.dev {
            warn("every process on this machine has full access without a key (--dev)");
        }
        if !at.ip().is_loopback() && self.tls.is_none() {
            warn(
                "keys cross the network unencrypted: give --tls-cert and --tls-key, or put TLS in front",
            );
        }
        if self.storage.is_none() && !core.runtime().enforces_disk_limits() {
            warn(&storage::warning(&config.data));
        }
        let key = if self.dev {
            String::new()
        } else {
            format!("-H \"X-API-Key: $(cat {})\" ", file.display())
        };
        print_line(&format!("serving  {}", paint("36", &url)));
        print_line(&format!("data     {}", config.data.display()));
        print_line(&format!("try      curl -s -X POST {key}{url}/sandboxes"));
        Ok(())
    }
}

/// Enables TCP keepalive, because many streams are silent for hours. Accepted connections inherit
/// the option from the listener.
fn enable_tcp_keepalive(listener: &TcpListener) -> std::io::Result<()> {
    const SILENT: Duration = Duration::from_mins(1);
    const AGAIN: Duration = Duration::from_secs(15);
    sockopt::set_socket_keepalive(listener, true)?;
    sockopt::set_tcp_keepidle(listener, SILENT)?;
    sockopt::set_tcp_keepintvl(listener, AGAIN)?;
    Ok(sockopt::set_tcp_keepcnt(listener, 4)?)
}

/// Writes a file atomically, with access for root only.
fn write_atomic(file: &Path, line: &str) -> Result<(), Error> {
    let new = file.with_extension("new");
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new);
    let written = opened.and_then(|mut opened| {
        opened.write_all(format!("{line}\n").as_bytes())?;
        // After a power failure the file must not be empty.
        opened.sync_all()?;
        std::fs::rename(&new, file)?;
        file.parent().map_or(Ok(()), |directory| {
            std::fs::File::open(directory)?.sync_all()
        })
    });
    written.map_err(|error| failed(&format!("write {}", file.display()), &error))
}

/// Whether a file contains a key of the database.
async fn is_known(core: &Core, file: &Path) -> Result<bool, Error> {
    match std::fs::read_to_string(file) {
        Ok(secret) => core.is_known_key(secret.trim()).await,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(&format!("read {}", file.display()), &error)),
    }
}

/// Renames the file of an admin key that the database does not contain: the database of that key is
/// lost.
fn retire_key(data: &Path) -> Result<(), Error> {
    let key = data.join("admin.key");
    match std::fs::rename(&key, data.join("admin.key.old")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed(&format!("rename {}", key.display()), &error))
        }
        _ => Ok(()),
    }
}

/// Opens the database, and records in it and in the data directory that they belong together.
async fn open_store(data: &Path, database: database::Location<'_>) -> Result<Store, Error> {
    let open = async {
        let store = database.open().await?;
        let recorded = database::instance_of(data);
        let proposed = recorded.clone().unwrap_or_else(InstanceId::random);
        let instance = store.claim_instance(&proposed).await?;
        // After a power failure the file must not name an instance that the database lost.
        store.sync().await?;
        Ok((store, instance, recorded))
    };
    let opened = open.await;
    let (store, instance, recorded) =
        opened.map_err(|error: atoll_store::Error| database.unusable(&error))?;
    if recorded.as_ref() != Some(&instance) {
        write_atomic(&data.join(database::INSTANCE), instance.as_str())?;
    }
    Ok(store)
}

/// The signer of URLs, whose secret is created at the first start.
fn signer(data: &Path) -> Result<Signer, Error> {
    let file = data.join("signing.key");
    if !file.exists() {
        write_atomic(&file, &atoll_core::random_secret_hex())?;
    }
    let secret = std::fs::read_to_string(&file);
    Signer::new(
        secret
            .map_err(|error| failed("read signing.key", &error))?
            .trim(),
    )
}

/// The Unix socket of the operator: the API with all rights for root on this machine.
fn operators_socket(data: &Path) -> Result<UnixListener, Error> {
    let path = data.join("run/api.sock");
    // This process holds the lock of the data directory, so an existing socket is stale.
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).map_err(|error| failed("make the operator's socket", &error))?;
    let permissions = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, permissions)
        .map_err(|error| failed("protect the operator's socket", &error))?;
    Ok(listener)
}

/// Signals that the server handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    again: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Error> {
        let hear = |kind| signal(kind).map_err(|error| failed("hear signals", &error));
        Ok(Self {
            terminate: hear(SignalKind::terminate())?,
            interrupt: hear(SignalKind::interrupt())?,
            again: hear(SignalKind::hangup())?,
        })
    }

    /// Waits for SIGINT or SIGTERM; SIGHUP reloads the certificate meanwhile.
    async fn wait_for_shutdown(mut self, tls: Option<&Tls>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.again.recv() => {}
            }
            match tls.map(Tls::reload) {
                None => tracing::info!("SIGHUP: there is no certificate to be read again"),
                Some(Ok(())) => tracing::info!("SIGHUP: the certificate was read again"),
                Some(Err(error)) => {
                    tracing::error!(%error, "SIGHUP: the certificate stays the old one");
                }
            }
        }
    }
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::new(Code::Internal, format!("cannot {what}: {error}"))
}

/// Wraps the settings as options of a command.
#[cfg(test)]
pub(super) fn settings_command() -> clap::Command {
    <Settings as Args>::augment_args(clap::Command::new("serve"))
}
