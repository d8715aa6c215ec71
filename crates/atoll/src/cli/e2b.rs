//! `atoll e2b`: environment variables with which E2B clients use this server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_client::Request;
use atoll_model::{Code, Error};
use clap::{Args, Subcommand};
use serde_json::json;

use super::server_args::{Remote, operator, text};
use super::{block_on, eprint_line, print_line};
use crate::config::Config;

/// Use this server with programs that are written for E2B.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:
  eval \"$(atoll e2b env)\"")]
pub(crate) enum E2b {
    Env(Env),
}

/// Print environment variables for E2B clients, as `export` lines.
///
/// The server and the key are those that other commands use. On the server's own machine, the
/// default is the server that runs there and a new key of scope sandbox:*, which is printed only
/// once. The key has the prefix that E2B clients expect.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  eval \"$(atoll e2b env)\"
  atoll e2b env --key \"$(atoll key create agents --expires 90d)\"
  atoll e2b env --url https://sandboxes.example.com
  atoll e2b env --domain sandboxes.example.com")]
pub(crate) struct Env {
    #[command(flatten)]
    remote: Remote,
    /// Domain of the server (`atoll serve --domain`), with TLS, instead of the server's URL; with
    /// the port if it is not 443.
    #[arg(long, value_name = "DOMAIN", conflicts_with = "url")]
    domain: Option<String>,
    /// The data directory of a server on this machine [default: /var/lib/atoll, or `ATOLL_DATA_DIR`].
    #[arg(long, value_name = "DIR", conflicts_with = "profile")]
    data_dir: Option<PathBuf>,
    /// Print this key instead.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Print the admin key of the server on this machine, which may do everything in every org.
    #[arg(long, conflicts_with = "key")]
    admin: bool,
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
        let server = if let Some(domain) = &self.domain {
            format!("export E2B_DOMAIN={domain}")
        } else {
            let url = checked(&url)?;
            format!("export E2B_API_URL={url}/e2b\nexport E2B_SANDBOX_URL={url}")
        };
        // The last step, because it may create a key.
        let key = self.key(key, config)?;
        print_line(&format!("{server}\nexport E2B_API_KEY={key}"));
        Ok(ExitCode::SUCCESS)
    }

    /// URL of the server, and the key that other commands use for it.
    fn server(&self, config: &Config) -> Result<(String, Option<String>), Error> {
        let configured = match &self.data_dir {
            // `--data-dir` names a server of this machine: the server in the environment is
            // ignored.
            Some(_) => self.remote.url_argument(),
            None => self.remote.place(config)?,
        };
        // With --data-dir and ATOLL_URL, ATOLL_API_KEY is a key of that other server.
        let is_foreign = self.data_dir.is_some() && config.url.is_some();
        let key = config.api_key.clone().filter(|_| !is_foreign);
        Ok(configured.unwrap_or_else(|| (running(self.data(config)), key)))
    }

    /// The key to print, with E2B's prefix.
    fn key(&self, configured: Option<String>, config: &Config) -> Result<String, Error> {
        let data = self.data(config);
        if let Some(key) = &self.key {
            return spelled(key, "the key of --key");
        }
        if self.admin {
            let file = data.join("admin.key");
            let key = spelled(&read_key(&file)?, &file.display().to_string())?;
            eprint_line(&format!(
                "the key is the admin key of {}: it may do everything in every org",
                file.display()
            ));
            return Ok(key);
        }
        match configured {
            Some(key) => spelled(&key, "the key of this server"),
            None => create_key(data),
        }
    }

    fn data<'a>(&'a self, config: &'a Config) -> &'a Path {
        self.data_dir.as_ref().unwrap_or(&config.data)
    }
}

/// A new key of the server with this data directory, for sandboxes of the operator's org.
fn create_key(data: &Path) -> Result<String, Error> {
    let client = operator(data, None);
    let request = Request::post("/keys", &json!({ "name": "e2b", "scope": "sandbox:*" }));
    let made = block_on(client.send_json(&request)).map_err(|error| {
        error.remedy(
            "start the server, or name its data directory with --data-dir; for a server elsewhere give a key with \
             --key or ATOLL_API_KEY",
        )
    })?;
    eprint_line(&format!(
        "made the key {} (sandbox:*), which is printed this once; `atoll key rm {0}` revokes it",
        text(&made, "keyID")
    ));
    spelled(text(&made, "key"), "the new key")
}

/// The URL that the server of this data directory has recorded, or the default one.
fn running(data: &Path) -> String {
    let url = std::fs::read_to_string(data.join(super::serve::PLACE));
    let url = url.map(|url| url.trim().to_owned());
    url.unwrap_or_else(|_| "http://127.0.0.1:8080".to_owned())
}

/// A shell evaluates the output.
fn is_plain(place: &str) -> bool {
    let letter = |letter: char| letter.is_ascii_alphanumeric() || ".-:[]".contains(letter);
    !place.is_empty() && place.chars().all(letter)
}

/// E2B clients drop the path of a URL.
fn checked(url: &str) -> Result<&str, Error> {
    let url = url.trim_end_matches('/');
    let place = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    if place.is_some_and(is_plain) {
        return Ok(url);
    }
    let message = format!("E2B's clients cannot use the URL {url:?}");
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

/// Adds the prefix that E2B clients expect to a key.
fn spelled(key: &str, of: &str) -> Result<String, Error> {
    let key = key.trim();
    let digits = key
        .strip_prefix("atl_")
        .or_else(|| key.strip_prefix("e2b_"));
    let digits = digits.filter(|digits| digits.chars().all(|digit| digit.is_ascii_hexdigit()));
    let digits = digits.ok_or_else(|| {
        let message = format!("{of} is no key of ours");
        Error::new(Code::NotFound, message).remedy("make one: `atoll key create NAME`")
    })?;
    Ok(format!("e2b_{digits}"))
}
