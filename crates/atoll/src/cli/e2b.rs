//! `atoll e2b`: what programs written for E2B are told, so that they use this server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_model::{Code, Error};
use clap::{Args, Subcommand};

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
/// The key is the server's first one, with the beginning that E2B's clients expect.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  eval \"$(atoll e2b env)\"
  atoll e2b env --url https://sandboxes.example.com
  atoll e2b env --domain sandboxes.example.com")]
pub(crate) struct Env {
    /// Where the server is.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// A domain of the server's (`atoll serve --domain`), with TLS, instead of where it is; with its port if that is not 443.
    #[arg(long, value_name = "DOMAIN", conflicts_with = "url")]
    domain: Option<String>,
    /// The server's data directory [default: /var/lib/atoll, or `ATOLL_DATA_DIR`].
    #[arg(long, value_name = "DIR")]
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
        let url = self.url.trim_end_matches('/');
        let place = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"));
        // It goes into a shell, and what is behind a place would be dropped by E2B's clients.
        let is_plain = |place: &str| {
            let letter = |letter: char| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter);
            !place.is_empty() && place.chars().all(letter)
        };
        if let Some(domain) = &self.domain
            && !is_plain(domain)
        {
            let message = format!("--domain {domain:?} is not a domain");
            let remedy = "give its name alone, such as sandboxes.example.com";
            return Err(Error::invalid("domain", message, remedy));
        }
        if !place.is_some_and(is_plain) {
            let message = format!("--url {:?} is not where a server is", self.url);
            let remedy = "give it without a path, such as http://127.0.0.1:8080";
            return Err(Error::invalid("url", message, remedy));
        }
        let file = self.data_dir.as_ref().unwrap_or(&config.data);
        let file = file.join("admin.key");
        let key = key(&file)?;
        note(&format!("the key is that of {}", file.display()));
        if let Some(domain) = &self.domain {
            say(&format!("export E2B_DOMAIN={domain}"));
        } else {
            say(&format!("export E2B_API_URL={url}/e2b"));
            say(&format!("export E2B_SANDBOX_URL={url}"));
        }
        say(&format!("export E2B_API_KEY={key}"));
        Ok(ExitCode::SUCCESS)
    }
}

/// The key in a file, as E2B's clients want it.
fn key(file: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let message = format!("the key in {} cannot be read: {error}", file.display());
        Error::new(Code::NotFound, message).remedy(
            "`atoll serve` makes it at its first start; name its data directory with --data-dir, or be who runs it",
        )
    })?;
    let digits = text.trim().strip_prefix("atl_");
    let digits = digits.filter(|digits| digits.chars().all(|digit| digit.is_ascii_hexdigit()));
    let digits = digits.ok_or_else(|| {
        let message = format!("{} has no key of ours", file.display());
        Error::new(Code::NotFound, message).remedy("make one with POST /keys")
    })?;
    Ok(format!("e2b_{digits}"))
}
