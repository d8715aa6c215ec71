//! `atoll login`: stores a server and its key as a profile.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use atoll_client::{Request, Target};
use atoll_model::{Category, Code, Error};
use clap::Args;

use super::run::{Signals, terminal::Raw};
use super::server_args::client;
use super::{block_on, eprint_line};
use crate::config::Config;
use crate::config::profiles::{Profile, Profiles};

/// Store a server and its key as a profile that other commands use.
///
/// The key is read from a prompt or from standard input. It is verified, then written to
/// atoll/config.toml below `$XDG_CONFIG_HOME` or ~/.config, which only you can read.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll login https://sandboxes.example.com
  atoll login http://127.0.0.1:8080 < /var/lib/atoll/admin.key
  atoll login --profile work https://sandboxes.example.com
  atoll login --no-key http://127.0.0.1:8080      a server of `atoll serve --dev`")]
pub(crate) struct Login {
    /// URL of the server.
    #[arg(default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Name of the profile, which becomes the default.
    #[arg(long, default_value = "default", value_name = "NAME")]
    profile: String,
    /// Store no key.
    #[arg(long)]
    no_key: bool,
}

impl Login {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let target: Target = self.url.parse()?;
        let Some(file) = &config.profiles else {
            return Err(Error::invalid(
                "HOME",
                "there is no place for profiles: HOME is not set",
                "set HOME or XDG_CONFIG_HOME",
            ));
        };
        let mut profiles = Profiles::read(file)?;
        let key = if self.no_key {
            None
        } else {
            match block_on(key())? {
                Ok(key) => Some(key),
                Err(number) => return Ok(ExitCode::from((128 + number) as u8)),
            }
        };
        let client = client(target.clone(), key.clone(), config);
        let checked = block_on(client.send_buffered(&Request::get("/sandboxes?limit=1")));
        checked.map_err(|error| refused(error, self.no_key))?;
        let profile = Profile {
            url: target.to_string(),
            api_key: key,
        };
        profiles.profiles.insert(self.profile.clone(), profile);
        profiles.default = Some(self.profile.clone());
        profiles.write(file)?;
        eprint_line(&format!(
            "logged in to {target} as {:?}: {}",
            self.profile,
            file.display()
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Remedy for a key that the server rejected.
fn refused(error: Error, without_key: bool) -> Error {
    if error.code.category() != Category::Auth {
        return error;
    }
    let made = "`atoll key create NAME` on the server's machine makes a key";
    error.remedy(if without_key {
        format!("leave out --no-key: the server wants a key; {made}")
    } else {
        format!("check that the key is complete, of this server, and neither revoked nor expired; {made}")
    })
}

/// Reads the key without echo; the inner `Err` is a signal that arrived first.
async fn key() -> Result<Result<String, i32>, Error> {
    let interactive = std::io::stdin().is_terminal();
    let mut signals = Signals::new()?;
    let silent = interactive.then(Raw::without_echo).transpose()?;
    if interactive {
        let _ = write!(std::io::stderr(), "key: ");
    }
    let (read, line) = tokio::sync::oneshot::channel();
    // On a separate thread, because a read of a terminal cannot be cancelled.
    std::thread::spawn(move || {
        let mut line = String::new();
        let done = std::io::stdin().lock().read_line(&mut line);
        let _ = read.send(done.map(|_| line));
    });
    let line = tokio::select! {
        line = line => line,
        number = signals.next() => return Ok(Err(number)),
    };
    drop(silent);
    if interactive {
        eprint_line("");
    }
    let line = line
        .unwrap_or_else(|_| Ok(String::new()))
        .map_err(|error| {
            let message = format!("the key cannot be read: {error}");
            Error::new(Code::InvalidRequest, message)
                .remedy("type it, or give it on standard input")
        })?;
    let key = line.trim();
    if key.is_empty() || key.chars().any(|letter| !letter.is_ascii_graphic()) {
        return Err(Error::invalid(
            "key",
            "this is no key",
            "a key is atl_ and 64 hex digits; --no-key is for a server that wants none",
        ));
    }
    Ok(Ok(key.to_owned()))
}
