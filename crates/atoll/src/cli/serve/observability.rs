//! Observability of a server: its log, and the metrics listener for Prometheus.

use std::fmt;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::str::FromStr;

use atoll_model::{Code, Error};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use super::{eprint_line, failed, paint, print_line, retry_bind};

/// Default address of the metrics listener.
pub(super) const METRICS: &str = "127.0.0.1:9091";

/// Settings of log and metrics.
#[derive(Debug, Clone)]
pub(super) struct Observability {
    pub(super) metrics_listen: Option<MetricsListen>,
    pub(super) log_format: Format,
    pub(super) log_level: Level,
}

/// Address of a listener, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) enum MetricsListen {
    At(SocketAddr),
    Off,
}

impl FromStr for MetricsListen {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| {
            let message = format!("{text:?} is neither a place nor off");
            Error::invalid("metrics-listen", message, "write it like 127.0.0.1:9091")
        })
    }
}

impl fmt::Display for MetricsListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at) => write!(f, "{at}"),
            Self::Off => f.write_str("off"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Format {
    Auto,
    Human,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl Observability {
    /// Logs to standard error. Dependencies log warnings and errors only, because their entries may
    /// contain secrets.
    pub(super) fn log(&self) {
        let others = match self.log_level {
            Level::Error => "error",
            _ => "warn",
        };
        let filter = EnvFilter::new(format!("{others},atoll={}", self.log_level.name()));
        let human = match self.log_format {
            Format::Auto => std::io::stderr().is_terminal(),
            Format::Human => true,
            Format::Json => false,
        };
        let builder = tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            // A log line that cannot be written is dropped; a panic about it would abort the
            // request.
            .log_internal_errors(false)
            .with_env_filter(filter);
        let _ = if human {
            builder.try_init()
        } else {
            let json = builder.json().flatten_event(true);
            json.with_span_list(false).try_init()
        };
    }

    /// Binds the metrics listener. Failing to bind a configured address is an error; failing to
    /// bind the default one is not, because several servers may run on a machine.
    pub(super) async fn metrics_listener(&self) -> Result<Option<TcpListener>, Error> {
        let usual = || METRICS.parse().map(MetricsListen::At);
        let place = match self.metrics_listen {
            Some(place) => place,
            None => usual().unwrap_or(MetricsListen::Off),
        };
        let MetricsListen::At(at) = place else {
            return Ok(None);
        };
        let timeout = match self.metrics_listen {
            Some(_) => retry_bind::RETRY_TIMEOUT,
            None => retry_bind::OPTIONAL_TIMEOUT,
        };
        match retry_bind::listen(at, timeout).await {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if self.metrics_listen.is_none() => {
                let warning = paint("33", "warning");
                eprint_line(&format!("{warning}: no metrics are shown: {at}: {error}"));
                eprint_line("  choose another place with --metrics-listen ADDR:PORT, or off");
                Ok(None)
            }
            Err(error) => Err(Error::new(
                Code::Conflict,
                format!("cannot show metrics on {at}: {error}"),
            )
            .remedy("choose another place with --metrics-listen ADDR:PORT, or off")),
        }
    }
}

/// Logs the address of the metrics listener.
pub(super) fn print_metrics_address(listener: &TcpListener) -> Result<(), Error> {
    let at = listener
        .local_addr()
        .map_err(|error| failed("ask for the port of metrics", &error))?;
    print_line(&format!("metrics  http://{at}/metrics"));
    Ok(())
}
