//! Location of a database: a SQLite file or a PostgreSQL URL.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// Query parameters of a PostgreSQL URL. An unknown one is an error: a misspelt `sslmode` must not turn TLS off.
const PARAMETERS: [&str; 12] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];
const SSL_MODES: &str = "disable, prefer, require, verify-ca or verify-full";

/// Location of a database. `Display` leaves the password out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// `sqlite:PATH`: a file.
    Sqlite(PathBuf),
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=MODE`.
    Postgres(PostgresUrl),
}

/// URL of a PostgreSQL database.
#[derive(Clone)]
pub struct PostgresUrl {
    text: String,
    options: Box<PgConnectOptions>,
}

/// A database URL that cannot be parsed. The message contains no password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidUrl(String);

impl FromStr for DatabaseUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        match text.split_once(':') {
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() {
                    return Err(InvalidUrl("sqlite: has no path".into()));
                }
                Ok(Self::Sqlite(path.into()))
            }
            Some(("postgres" | "postgresql", _)) => text.parse().map(Self::Postgres),
            _ => Err(InvalidUrl(
                "the scheme is neither postgres:// nor sqlite:".into(),
            )),
        }
    }
}

impl FromStr for PostgresUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let rest = text.split_once("://").map(|(_, rest)| rest);
        let rest = rest.ok_or_else(|| InvalidUrl("postgres: must be followed by //".into()))?;
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        let mut parameters = HashMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !PARAMETERS.contains(&name) {
                return Err(InvalidUrl(format!("unknown parameter {name:?}")));
            }
            parameters.insert(name, value);
        }
        let mode = parameters.get("sslmode").copied().unwrap_or("prefer");
        // sqlx treats `allow` like `disable`.
        if !["disable", "prefer", "require", "verify-ca", "verify-full"].contains(&mode) {
            return Err(InvalidUrl(format!(
                "sslmode {mode:?} is not one of {SSL_MODES}"
            )));
        }
        let options: PgConnectOptions = text
            .parse()
            .map_err(|error: sqlx::Error| InvalidUrl(reason(&error, text)))?;
        if options.get_database().is_none() {
            return Err(InvalidUrl("the URL names no database".into()));
        }
        // As libpq does: with a root certificate, `require` verifies the server's certificate.
        let options = if mode == "require" && parameters.contains_key("sslrootcert") {
            options.ssl_mode(PgSslMode::VerifyCa)
        } else {
            options
        };
        let options = if parameters.contains_key("application_name") {
            options
        } else {
            options.application_name("atoll")
        };
        Ok(Self {
            text: text.to_owned(),
            options: Box::new(options),
        })
    }
}

/// Message of a parser's error. The parser does not repeat the URL, but this must not depend on it.
fn reason(error: &sqlx::Error, text: &str) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let cause = cause.unwrap_or_else(|| error.to_string());
    if cause.contains(text) {
        "it is not a URL".into()
    } else {
        cause
    }
}

impl PostgresUrl {
    /// Options of a connection.
    pub(crate) fn options(&self) -> PgConnectOptions {
        (*self.options).clone()
    }

    /// The URL with its password, for another program or a configuration file.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl PartialEq for PostgresUrl {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PostgresUrl {}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.options;
        let host = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let database = options.get_database().unwrap_or_default();
        write!(f, "postgres://{}@{host}/{database}", options.get_username())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

impl From<&Path> for DatabaseUrl {
    fn from(path: &Path) -> Self {
        Self::Sqlite(path.to_owned())
    }
}
