//! `atoll e2b`: what programs written for E2B are told, so that they use this server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_model::{Code, Error};
use clap::{Args, Subcommand};

use super::remote::Remote;
use super::{note, say};
use crate::config::Config;

/// Let programs that are written for E2B use this server.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:
  eval \"$(atoll e2b env)\"")]
pub(crate) enum E2b {
    Env(Env),
}

/// Print the lines to export.
///
/// The server is the one that other commands use; on its own machine, the one that runs there. Its key has the beginning
/// that E2B's clients expect.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  eval \"$(atoll e2b env)\"
  atoll e2b env --url https://sandboxes.example.com
  atoll e2b env --domain sandboxes.example.com")]
pub(crate) struct Env {
    #[command(flatten)]
    remote: Remote,
    /// A domain of the server's (`atoll serve --domain`), with TLS, instead of where it is; with its port if that is not 443.
    #[arg(long, value_name = "DOMAIN", conflicts_with = "url")]
    domain: Option<String>,
    /// The data directory of a server on this machine [default: /var/lib/atoll, or `ATOLL_DATA_DIR`].
    #[arg(long, value_name = "DIR", conflicts_with = "profile")]
    data_dir: Option<PathBuf>,
}

impl E2b {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let Self::Env(env) = self;
        env.run(config)
    }
}

impl Env {
    fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        if let Some(domain) = &self.domain
            && !is_plain(domain)
        {
            let message = format!("--domain {domain:?} is not a domain");
            let remedy = "give its name alone, such as sandboxes.example.com";
            return Err(Error::invalid("domain", message, remedy));
        }
        let (url, key) = self.server(config)?;
        if let Some(domain) = &self.domain {
            say(&format!("export E2B_DOMAIN={domain}"));
        } else {
            let url = checked(&url)?;
            say(&format!("export E2B_API_URL={url}/e2b"));
            say(&format!("export E2B_SANDBOX_URL={url}"));
        }
        say(&format!("export E2B_API_KEY={key}"));
        Ok(ExitCode::SUCCESS)
    }

    /// Where the server is, and a key of it.
    fn server(&self, config: &Config) -> Result<(String, String), Error> {
        let told = match &self.data_dir {
            // A server here was named: whatever the surroundings say of another is not meant.
            Some(_) => self.remote.said(),
            None => self.remote.place(config)?,
        };
        let data = self.data_dir.as_ref().unwrap_or(&config.data);
        let (url, key) = match told {
            Some((url, key)) => (url, key),
            None => (running(data), None),
        };
        if let Some(key) = key {
            let of = "the key that this server is asked with";
            return Ok((url, spelled(&key, of)?));
        }
        let file = data.join("admin.key");
        let key = spelled(&read_key(&file)?, &file.display().to_string())?;
        note(&format!("the key is that of {}", file.display()));
        Ok((url, key))
    }
}

/// Where the server with this data directory says that it is; or where it is if nobody says anything else.
fn running(data: &Path) -> String {
    let said = std::fs::read_to_string(data.join(super::serve::PLACE));
    let said = said.map(|url| url.trim().to_owned());
    said.unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned())
}

/// It goes into a shell.
fn is_plain(place: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter);
    !place.is_empty() && place.chars().all(letter)
}

/// What is behind a place would be dropped by E2B's clients.
fn checked(url: &str) -> Result<&str, Error> {
    let url = url.trim_end_matches('/');
    let place = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    if place.is_some_and(is_plain) {
        return Ok(url);
    }
    let message = format!("E2B's clients cannot be told to go to {url:?}");
    let remedy = "say where the server is without a path, such as --url http://127.0.0.1:8080";
    Err(Error::invalid("url", message, remedy))
}

fn read_key(file: &Path) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|error| {
        let message = format!("the key in {} cannot be read: {error}", file.display());
        Error::new(Code::NotFound, message).remedy(
            "`atoll serve` makes it at its first start; name its data directory with --data-dir, or be who runs it",
        )
    })
}

/// A key as E2B's clients want it.
fn spelled(key: &str, of: &str) -> Result<String, Error> {
    let key = key.trim();
    let digits = key
        .strip_prefix("atl_")
        .or_else(|| key.strip_prefix("e2b_"));
    let digits = digits.filter(|digits| digits.chars().all(|digit| digit.is_ascii_hexdigit()));
    let digits = digits.ok_or_else(|| {
        let message = format!("{of} is no key of ours");
        Error::new(Code::NotFound, message).remedy("make one with POST /keys")
    })?;
    Ok(format!("e2b_{digits}"))
}
