//! URLs of servers: `http://HOST:PORT`, `https://HOST`, or `unix:///PATH` for a socket of this
//! machine.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use atoll_model::Error;
use hyper::Uri;

/// Parsed URL of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) place: Place,
    /// Value of the `Host` header.
    pub(crate) host: String,
    /// Prefix of all paths, for servers behind a reverse proxy.
    pub(crate) prefix: String,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp {
        host: String,
        port: u16,
        encrypted: bool,
    },
    Unix(PathBuf),
}

impl Target {
    /// URL of the Unix socket of a server on this machine.
    pub fn socket(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            text: format!("unix://{}", path.display()),
            place: Place::Unix(path),
            host: "localhost".into(),
            prefix: String::new(),
        }
    }

    /// Whether this is a Unix socket.
    pub fn is_socket(&self) -> bool {
        matches!(self.place, Place::Unix(_))
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(
                "url",
                format!("{text:?} is not where a server is"),
                "write it as http://HOST:PORT, https://HOST or unix:///PATH/OF/A/SOCKET",
            )
        };
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return path
                .is_absolute()
                .then(|| Self::socket(path))
                .ok_or_else(wrong);
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?.as_str();
        let host = uri.host().unwrap_or_default();
        // Credentials and a query are not accepted.
        let odd_port = authority.len() > host.len() && uri.port_u16().is_none();
        if host.is_empty() || authority.contains('@') || uri.query().is_some() || odd_port {
            return Err(wrong());
        }
        let usual = if encrypted { 443 } else { 80 };
        Ok(Self {
            place: Place::Tcp {
                host: host.trim_start_matches('[').trim_end_matches(']').into(),
                port: uri.port_u16().unwrap_or(usual),
                encrypted,
            },
            host: authority.to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            text: text.trim_end_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use super::*;

    #[test]
    fn valid_urls_parse_and_invalid_ones_fail() {
        let target: Target = "https://sandboxes.example.com/atoll/".parse().unwrap();
        assert_eq!(target.prefix, "/atoll");
        let (host, port) = ("sandboxes.example.com".into(), 443);
        let encrypted = true;
        assert_eq!(
            target.place,
            Place::Tcp {
                host,
                port,
                encrypted
            }
        );
        let target: Target = "http://[::1]:8080".parse().unwrap();
        assert_eq!(target.host, "[::1]:8080");
        assert!(matches!(target.place, Place::Tcp { ref host, port: 8080, .. } if host == "::1"));
        assert!(
            "unix:///run/api.sock"
                .parse::<Target>()
                .unwrap()
                .is_socket()
        );
        for odd in [
            "",
            "localhost:8080",
            "127.0.0.1:8080",
            "ftp://host",
            "http://",
            "http://me:word@host",
            "http://host?x",
            "unix://relative",
            "http://host:99999",
        ] {
            let error = odd.parse::<Target>().unwrap_err();
            assert_eq!(error.code, atoll_model::Code::InvalidRequest, "{odd}");
        }
    }
}
