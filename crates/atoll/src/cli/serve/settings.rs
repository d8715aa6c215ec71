//! Settings of `atoll serve`: from the command line, from a TOML file, or defaults, with the same
//! names. The command line takes precedence over the file, the file over the defaults.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use atoll_model::{Bytes, Code, Cpus, EgressException, Error, Limits, parse_duration};
use atoll_store::PostgresUrl;
use atoll_worker::{Reserve, Storage};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::database::parse_url;
use super::observability::{Format, Level, MetricsListen, Observability};
use super::problems::Problems;

/// All settings. A setting that is not given is `None` until [`Settings::complete`].
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Settings {
    /// Address and port to listen on [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) listen: Option<SocketAddr>,
    /// The data directory [default: /var/lib/atoll, or `ATOLL_DATA_DIR`].
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,
    /// Storage of sandboxes' files: `plain` directories, whose disk limits are advisory, or a btrfs
    /// `image`, which enforces disk limits [default: `ATOLL_STORAGE`, else that of the data
    /// directory, else plain].
    #[arg(long, value_name = "plain|image")]
    pub(super) storage: Option<Storage>,
    /// PostgreSQL database to use instead of the SQLite file in the data directory:
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full` [default:
    /// `ATOLL_DATABASE_URL`, else the file].
    #[arg(long, value_name = "URL")]
    pub(super) database_url: Option<ServerUrl>,
    /// File with one more API key, of any form, for one org; readable by its owner only.
    #[arg(long, value_name = "FILE")]
    pub(super) static_key_file: Option<PathBuf>,
    /// Name of the static key's org. Without it, the key belongs to the first org.
    #[arg(long, value_name = "NAME")]
    pub(super) static_key_org: Option<String>,
    /// Serve without authentication, on loopback only.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) dev: Option<bool>,
    /// Address and port that serve metrics for Prometheus, or "off" [default: 127.0.0.1:9091].
    #[arg(long, value_name = "ADDR:PORT|off")]
    pub(super) metrics_listen: Option<MetricsListen>,
    /// Serve HTTPS with this certificate chain in PEM; SIGHUP reloads it.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_cert: Option<PathBuf>,
    /// The certificate's private key in PEM.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_key: Option<PathBuf>,
    /// Host name that the server accepts in requests of browsers; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub(super) host: Option<Vec<String>>,
    /// Domain for sandbox ports: PORT-SANDBOX.DOMAIN is forwarded to that port; may be repeated.
    #[arg(long, value_name = "DOMAIN")]
    pub(super) domain: Option<Vec<String>>,
    /// Origin whose pages may use the API from browsers (CORS); may be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub(super) cors_origin: Option<Vec<String>>,
    /// What happens to sandboxes when this server exits [default: keep].
    #[arg(long, value_enum)]
    pub(super) on_exit: Option<OnExit>,
    /// Time after which a stopped sandbox is deleted; 0 is never [default: 30d].
    #[arg(long, value_name = "TIME")]
    pub(super) stopped_retention: Option<Time>,
    /// Disk space of the data directory's file system that is reserved for the host: no sandbox is
    /// created while less is free [default: 5 %, 2 GiB to 16 GiB].
    #[arg(long, value_name = "SIZE")]
    pub(super) disk_reserve: Option<Size>,
    /// Memory that is reserved for the host: no sandbox is created while less is free [default: 5
    /// %, 512 MiB to 4 GiB].
    #[arg(long, value_name = "SIZE")]
    pub(super) memory_reserve: Option<Size>,
    /// Maximum of CPUs of one sandbox [default: 4].
    #[arg(long, value_name = "NUMBER")]
    pub(super) max_cpus: Option<NonZeroU32>,
    /// Maximum memory of one sandbox [default: 8G].
    #[arg(long, value_name = "SIZE")]
    pub(super) max_memory: Option<Size>,
    /// Maximum disk space of one sandbox [default: 50G].
    #[arg(long, value_name = "SIZE")]
    pub(super) max_disk: Option<Size>,
    /// Allow all sandboxes with a network to reach private addresses that they cannot reach by
    /// default, such as a company's registry: 10.1.2.3, 10.1.0.0/16, 10.1.2.3:443,8000-8099; may be
    /// repeated.
    #[arg(long, value_name = "CIDR[:PORTS]")]
    pub(super) egress_allow: Option<Vec<EgressException>>,
    /// PEM file with certificate authorities that every sandbox trusts in addition to those of its
    /// template; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub(super) ca_file: Option<Vec<PathBuf>>,
    /// Output that is stored per command; a sandbox stores at most 16 times as much for all its
    /// commands [default: 64M].
    #[arg(long, value_name = "SIZE")]
    pub(super) output_window: Option<Size>,
    /// Maximum of requests per second of one key [default: no limit].
    #[arg(long, value_name = "NUMBER")]
    pub(super) rate_limit: Option<NonZeroU32>,
    /// Maximum of open connections; more wait. At most half of the limit for open files [default:
    /// 10000].
    #[arg(long, value_name = "NUMBER")]
    pub(super) max_connections: Option<NonZeroU32>,
    /// Time that a client has for a handshake and for the head of a request [default: 30s].
    #[arg(long, value_name = "TIME")]
    pub(super) client_timeout: Option<Time>,
    /// Time without data after which the transfer of a body is aborted [default: 5m].
    #[arg(long, value_name = "TIME")]
    pub(super) body_timeout: Option<Time>,
    /// Time after which a connection without a request is closed; `client-timeout` applies instead
    /// while no connections are left, and until a request with a key has arrived on the connection
    /// [default: 620s].
    #[arg(long, value_name = "TIME")]
    pub(super) idle_timeout: Option<Time>,
    /// Format of the log on standard error; `auto` is `human` on a terminal and `json` otherwise
    /// [default: auto].
    #[arg(long, value_enum)]
    pub(super) log_format: Option<Format>,
    /// Minimum level of log entries [default: info].
    #[arg(long, value_enum)]
    pub(super) log_level: Option<Level>,
}

/// What happens to sandboxes when their server exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OnExit {
    /// They keep running.
    Keep,
    /// They are deleted.
    Destroy,
}

/// A duration with units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Time(pub(super) Duration);

/// A size with units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Size(pub(super) Bytes);

/// URL of a PostgreSQL database. Its text contains the password, so that printed settings can be used as a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct ServerUrl(PostgresUrl);

impl FromStr for ServerUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_url(text).map(Self)
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.expose())
    }
}

impl FromStr for Time {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_duration(text).map(Self)
    }
}

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("d", 86_400_000),
            ("h", 3_600_000),
            ("m", 60_000),
            ("s", 1000),
        ];
        let all = self.0.as_millis();
        let fits = |(_, unit): &&(&str, u128)| all > 0 && all.is_multiple_of(*unit);
        let (name, unit) = units.iter().find(fits).unwrap_or(&("ms", 1));
        write!(f, "{}{name}", all / unit)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
        let Bytes(all) = self.0;
        let fits = |(_, unit): &&(&str, u64)| all > 0 && all.is_multiple_of(*unit);
        let (name, unit) = units.iter().find(fits).unwrap_or(&("", 1));
        write!(f, "{}{name}", all / unit)
    }
}

macro_rules! as_text {
    ($($kind:ident),*) => { $(
        impl TryFrom<String> for $kind {
            type Error = Error;
            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }
        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }
    )* };
}
as_text!(Time, Size, MetricsListen, ServerUrl);

impl Settings {
    /// Reads a TOML file.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message = format!("--config {}: {error}", path.display());
            Error::invalid("config", message, "name a TOML file")
        })?;
        toml::from_str(&text).map_err(|error| {
            // The error contains the line and the expected value.
            let message = format!("--config {}: {error}", path.display());
            Error::invalid(
                "config",
                message.trim_end(),
                "atoll serve --print-config shows every field with its value",
            )
        })
    }

    /// Fills settings that are `None` from `others`.
    pub(super) fn or(self, others: Self) -> Self {
        macro_rules! first {
            ($($field:ident),* $(,)?) => { Self { $($field: self.$field.or(others.$field)),* } };
        }
        first!(
            listen,
            data_dir,
            storage,
            database_url,
            static_key_file,
            static_key_org,
            dev,
            metrics_listen,
            tls_cert,
            tls_key,
            host,
            domain,
            cors_origin,
            on_exit,
            stopped_retention,
            disk_reserve,
            memory_reserve,
            max_cpus,
            max_memory,
            max_disk,
            egress_allow,
            ca_file,
            output_window,
            rate_limit,
            max_connections,
            client_timeout,
            body_timeout,
            idle_timeout,
            log_format,
            log_level,
        )
    }

    /// The defaults. Settings that depend on the machine, or are off, stay `None`.
    pub(super) fn usual(data: &Path) -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 8080))),
            data_dir: Some(data.to_owned()),
            dev: Some(false),
            host: Some(Vec::new()),
            domain: Some(Vec::new()),
            cors_origin: Some(Vec::new()),
            on_exit: Some(OnExit::Keep),
            stopped_retention: Some(Time(Duration::from_hours(30 * 24))),
            max_cpus: NonZeroU32::new(Limits::MAX.cpus.0 / 1000),
            max_memory: Some(Size(Limits::MAX.memory)),
            max_disk: Some(Size(Limits::MAX.disk)),
            egress_allow: Some(Vec::new()),
            ca_file: Some(Vec::new()),
            max_connections: NonZeroU32::new(10_000),
            client_timeout: Some(Time(Duration::from_secs(30))),
            body_timeout: Some(Time(Duration::from_mins(5))),
            // E2B's clients keep idle connections for 300 s; the server must not close one that
            // they are about to reuse.
            idle_timeout: Some(Time(Duration::from_secs(620))),
            log_format: Some(Format::Auto),
            log_level: Some(Level::Info),
            ..Self::default()
        }
    }

    /// Formats all settings as a TOML file.
    pub(super) fn to_toml(&self) -> Result<String, Error> {
        toml::to_string(self).map_err(|error| {
            let message = format!("the settings cannot be written: {error}");
            Error::new(Code::Internal, message)
        })
    }

    /// Applies defaults and validates the combination of settings.
    pub(super) fn complete(self) -> Result<ResolvedSettings, Error> {
        let missing = |field: &'static str| {
            move || Error::new(Code::Internal, format!("{field} has no usual value"))
        };
        let mut problems = Problems::default();
        let tls = problems.check(pair(self.tls_cert, self.tls_key));
        let ceilings = problems.check(ceilings(self.max_cpus, self.max_memory, self.max_disk));
        let static_key = problems.check(static_key(self.static_key_file, self.static_key_org));
        let all = ResolvedSettings {
            listen: self.listen.ok_or_else(missing("listen"))?,
            data: self.data_dir.ok_or_else(missing("data-dir"))?,
            storage: self.storage,
            database: self.database_url.map(|url| url.0),
            dev: self.dev.unwrap_or_default(),
            tls: tls.flatten(),
            hosts: self.host.unwrap_or_default(),
            domains: self.domain.unwrap_or_default(),
            origins: self.cors_origin.unwrap_or_default(),
            watching: Observability {
                metrics_listen: self.metrics_listen,
                log_format: self.log_format.ok_or_else(missing("log-format"))?,
                log_level: self.log_level.ok_or_else(missing("log-level"))?,
            },
            on_exit: self.on_exit.unwrap_or(OnExit::Keep),
            reserve: Reserve {
                disk: self.disk_reserve.map(|size| size.0),
                memory: self.memory_reserve.map(|size| size.0),
            },
            ceilings: ceilings.unwrap_or(Limits::MAX),
            exceptions: self.egress_allow.unwrap_or_default(),
            authorities: self.ca_file.unwrap_or_default(),
            window: self.output_window.map(|size| size.0),
            rules: atoll_core::Config {
                stopped_retention: self
                    .stopped_retention
                    .map(|time| time.0)
                    .filter(|time| !time.is_zero()),
                rate_limit: self.rate_limit,
                adopt_orphans: false,
                static_key: None,
            },
            static_key: static_key.flatten(),
            limits: atoll_server::ConnectionLimits {
                max_connections: self
                    .max_connections
                    .ok_or_else(missing("max-connections"))?
                    .get(),
                head_timeout: self.client_timeout.ok_or_else(missing("client-timeout"))?.0,
                body_idle_timeout: self.body_timeout.ok_or_else(missing("body-timeout"))?.0,
                idle_timeout: self.idle_timeout.ok_or_else(missing("idle-timeout"))?.0,
                first_reserved_fd: i32::MAX,
            },
        };
        all.check(&mut problems);
        problems.finish()?;
        Ok(all)
    }
}

/// Ceilings of one sandbox: at least what a sandbox has if its caller names no size.
fn ceilings(
    cpus: Option<NonZeroU32>,
    memory: Option<Size>,
    disk: Option<Size>,
) -> Result<Limits, Error> {
    let most = Limits {
        cpus: cpus.map_or(Limits::MAX.cpus, |cpus| {
            Cpus(cpus.get().saturating_mul(1000))
        }),
        memory: memory.map_or(Limits::MAX.memory, |size| size.0),
        disk: disk.map_or(Limits::MAX.disk, |size| size.0),
        pids: Limits::MAX.pids,
    };
    let usual = Limits::default();
    let sizes = [
        (
            "max-cpus",
            most.cpus.to_string(),
            most.cpus < usual.cpus,
            usual.cpus.to_string(),
        ),
        (
            "max-memory",
            most.memory.to_string(),
            most.memory < usual.memory,
            usual.memory.to_string(),
        ),
        (
            "max-disk",
            most.disk.to_string(),
            most.disk < usual.disk,
            usual.disk.to_string(),
        ),
    ];
    for (field, given, too_little, least) in sizes {
        if too_little {
            return Err(Error::invalid(
                field,
                format!("{field} {given} is less than a sandbox has by default"),
                format!("give at least {least}"),
            ));
        }
    }
    Ok(most)
}

/// The file of the static key, and the name of its org.
fn static_key(
    file: Option<PathBuf>,
    org: Option<String>,
) -> Result<Option<(PathBuf, Option<String>)>, Error> {
    if file.is_none() && org.is_some() {
        let message = "--static-key-org without --static-key-file";
        let remedy = "name the file with the key, or leave the org out";
        return Err(Error::invalid("static-key-org", message, remedy));
    }
    Ok(file.map(|file| (file, org)))
}

/// A certificate needs a key and vice versa.
fn pair(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<(PathBuf, PathBuf)>, Error> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (certificate, _) => {
            let (there, missing) = match certificate {
                Some(_) => ("tls-cert", "tls-key"),
                None => ("tls-key", "tls-cert"),
            };
            let message = format!("{there} is given and {missing} is not");
            Err(Error::invalid(
                missing,
                message,
                "give both: a certificate and its key",
            ))
        }
    }
}

/// All settings with defaults applied.
#[derive(Debug, Clone)]
pub(super) struct ResolvedSettings {
    pub(super) listen: SocketAddr,
    pub(super) data: PathBuf,
    /// `None`: storage of the data directory, else the default.
    pub(super) storage: Option<Storage>,
    /// `None`: the SQLite file of the data directory.
    pub(super) database: Option<PostgresUrl>,
    pub(super) dev: bool,
    /// A certificate and its key.
    pub(super) tls: Option<(PathBuf, PathBuf)>,
    pub(super) hosts: Vec<String>,
    pub(super) domains: Vec<String>,
    pub(super) origins: Vec<String>,
    pub(super) watching: Observability,
    pub(super) on_exit: OnExit,
    pub(super) reserve: Reserve,
    /// Maximum resources of one sandbox.
    pub(super) ceilings: Limits,
    /// Private addresses that sandboxes may reach.
    pub(super) exceptions: Vec<EgressException>,
    /// Files with certificate authorities.
    pub(super) authorities: Vec<PathBuf>,
    pub(super) window: Option<Bytes>,
    pub(super) rules: atoll_core::Config,
    /// File of the static key, and the name of its org.
    pub(super) static_key: Option<(PathBuf, Option<String>)>,
    pub(super) limits: atoll_server::ConnectionLimits,
}

impl ResolvedSettings {
    fn check(&self, problems: &mut Problems) {
        if self.dev && !self.listen.ip().is_loopback() {
            let message = format!(
                "--dev gives full access without a key, and {} is not loopback",
                self.listen
            );
            let remedy = "leave --dev out, or listen on 127.0.0.1";
            problems.add(Error::invalid("dev", message, remedy));
        }
        let limits = &self.limits;
        for (field, time) in [
            ("client-timeout", limits.head_timeout),
            ("body-timeout", limits.body_idle_timeout),
            ("idle-timeout", limits.idle_timeout),
        ] {
            if time.is_zero() {
                let message = format!("{field} must be longer than 0");
                problems.add(Error::invalid(field, message, "give at least 1s"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::defaults::written_defaults;
    use super::*;

    fn read(text: &str) -> Result<Settings, Error> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Settings::read(file.path())
    }

    #[test]
    fn command_line_overrides_file_and_file_overrides_defaults() {
        let flags = Settings {
            dev: Some(false),
            ..Settings::default()
        };
        let file = read("dev = true\nlisten = \"127.0.0.1:1\"\ndisk-reserve = \"3G\"\n");
        let all = flags.or(file.expect("it is right"));
        let all = all.or(Settings::usual(Path::new("/data")));
        let all = all.complete().expect("it is complete");
        assert!(!all.dev);
        assert_eq!(all.listen.port(), 1);
        assert_eq!(all.data, Path::new("/data"));
        assert_eq!(all.reserve.disk, Some(Bytes(3 << 30)));
        let month = Duration::from_hours(30 * 24);
        assert_eq!(all.rules.stopped_retention, Some(month));
    }

    #[test]
    fn help_names_the_effective_defaults() {
        let usual = Settings::usual(Path::new("/data")).to_toml().expect("text");
        let usual: toml::Table = usual.parse().expect("TOML");
        let window = atoll_worker::Config::serving(Path::new("/data")).output_window;
        let command = Settings::augment_args(clap::Command::new("serve"));
        for (flag, described) in written_defaults(&command) {
            let name = flag.trim_start_matches("--");
            let real = match (name, usual.get(name)) {
                // Reserves are shares of the machine, as `atoll_worker::Reserve` tests them.
                (
                    "data-dir" | "database-url" | "disk-reserve" | "memory-reserve" | "storage",
                    _,
                ) => continue,
                ("metrics-listen", _) => super::super::observability::METRICS.to_owned(),
                ("output-window", _) => format!("{}M", window.0 >> 20),
                ("rate-limit", None) => "no limit".to_owned(),
                (_, Some(toml::Value::String(text))) => text.clone(),
                (_, Some(value)) => value.to_string(),
                (_, None) => panic!("{flag}: [default: {described}] has no counterpart"),
            };
            assert_eq!(described, real, "{flag}");
        }
    }

    #[test]
    fn printed_settings_parse_again() {
        let mut all = Settings::usual(Path::new("/data"));
        all.tls_cert = Some("c.pem".into());
        all.client_timeout = Some(Time(Duration::from_millis(1500)));
        all.memory_reserve = Some(Size(Bytes(5000)));
        all.output_window = Some(Size(Bytes(8 << 20)));
        all.rate_limit = NonZeroU32::new(7);
        all.storage = Some(Storage::Image);
        let url = "postgres://u:p@localhost:5432/atoll?sslmode=require";
        all.database_url = Some(url.parse().expect("a URL"));
        all.egress_allow = Some(vec!["10.0.0.0/8:443".parse().expect("an exception")]);
        all.ca_file = Some(vec!["ca.pem".into()]);
        all.max_disk = Some(Size(Bytes(100 << 30)));
        let text = all.to_toml().expect("text");
        let again = read(&text).expect("it is right");
        assert_eq!(again.to_toml().expect("text"), text);
    }

    #[test]
    fn errors_in_the_file_name_their_line() {
        for (text, expected) in [
            ("dev = true\nlissten = \"x\"\n", ["line 2", "lissten"]),
            ("listen = 7\n", ["line 1", "listen = 7"]),
            ("\nclient-timeout = \"soon\"\n", ["line 2", "soon"]),
            ("disk-reserve = \"much\"\n", ["line 1", "much"]),
            ("on-exit = \"maybe\"\n", ["line 1", "maybe"]),
            ("storage = \"tape\"\n", ["line 1", "tape"]),
            (
                "egress-allow = [\"127.0.0.1\"]\n",
                ["line 1", "never opened"],
            ),
        ] {
            let message = read(text).expect_err("it is wrong").message;
            for word in expected {
                assert!(message.contains(word), "{word}: {message}");
            }
        }
    }

    #[test]
    fn incomplete_and_insecure_settings_are_refused() {
        let usual = || Settings::usual(Path::new("/data"));
        let mut half = usual();
        half.tls_key = Some("k.pem".into());
        let mut open = usual();
        (open.dev, open.listen) = (Some(true), Some(SocketAddr::from(([0, 0, 0, 0], 1))));
        let mut hasty = usual();
        hasty.client_timeout = Some(Time(Duration::ZERO));
        let mut small = usual();
        small.max_memory = Some(Size(Bytes(1 << 30)));
        let mut brief = usual();
        brief.idle_timeout = Some(Time(Duration::ZERO));
        for (settings, field) in [
            (half, "tls-cert"),
            (open, "dev"),
            (hasty, "client-timeout"),
            (small, "max-memory"),
            (brief, "idle-timeout"),
        ] {
            let error = settings.complete().expect_err("it makes no sense");
            assert_eq!(error.details["field"], field);
        }
    }
}
