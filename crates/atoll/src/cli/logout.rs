//! `atoll logout`: deletes the profile of a server.

use std::process::ExitCode;

use atoll_model::{Code, Error};
use clap::Args;

use super::eprint_line;
use crate::config::Config;
use crate::config::profiles::Profiles;

/// Delete a server and its key that `atoll login` stored.
///
/// The server still accepts the key: `atoll key rm` revokes it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll logout
  atoll logout --profile work")]
pub(crate) struct Logout {
    /// Name of the profile [default: that of the last `atoll login`].
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

impl Logout {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let none = || {
            Error::new(Code::NotFound, "no server is remembered")
                .remedy("ATOLL_URL and ATOLL_API_KEY name one too, if they are set: unset them")
        };
        let file = config.profiles.as_ref().ok_or_else(none)?;
        let mut profiles = Profiles::read(file)?;
        let url = profiles.find(self.profile.as_deref(), file)?;
        let url = url.ok_or_else(none)?.url.clone();
        let name = self.profile.clone().or_else(|| profiles.default.clone());
        let name = name.unwrap_or_default();
        profiles.profiles.remove(&name);
        profiles.default.take_if(|default| *default == name);
        profiles.write(file)?;
        eprint_line(&format!("logged out of {url}: {name:?} is forgotten"));
        if profiles.default.is_none() && !profiles.profiles.is_empty() {
            let left: Vec<&str> = profiles.profiles.keys().map(String::as_str).collect();
            eprint_line(&format!("  --profile still finds: {}", left.join(", ")));
        }
        Ok(ExitCode::SUCCESS)
    }
}
