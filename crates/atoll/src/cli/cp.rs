//! `atoll cp`: copies files and directories into and out of sandboxes. A directory is sent as one
//! tar stream.

pub(crate) mod download;
pub(crate) mod pack;
mod unpack;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use atoll_client::Client;
use atoll_model::{Category, Error};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::eprint_line;
use super::files::look;
use super::server_args::{Remote, file_call, find, text};
use crate::config::Config;

/// Copy files and directories into or out of a sandbox.
///
/// If the target is a directory or ends in /, the source is copied into it under its own name; the
/// source `DIR/.` is the contents of a directory. Modes and symbolic links are preserved. Write a
/// local path that contains a colon as ./a:b.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll cp notes.txt web:             into the user's home
  atoll cp ./project web:work
  atoll cp web:work/out.txt .
  atoll cp web:/var/log ./logs --user root")]
pub(crate) struct Cp {
    /// PATH, or SANDBOX:PATH.
    #[arg(value_name = "SRC")]
    source: Place,
    /// PATH, or SANDBOX:PATH.
    #[arg(value_name = "DST")]
    target: Place,
    /// Act as this user of the sandbox [default: the template's].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

/// Source or target of a copy.
#[derive(Debug, Clone)]
enum Place {
    Here(PathBuf),
    There { sandbox: String, path: String },
}

impl FromStr for Place {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once(':') {
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains(['/', '.']) => {
                Self::There {
                    sandbox: sandbox.to_owned(),
                    path: if path.is_empty() { "." } else { path }.to_owned(),
                }
            }
            _ => Self::Here(text.into()),
        })
    }
}

impl Cp {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.remote
            .with(config, async |client| match (&self.source, &self.target) {
                (Place::Here(source), Place::There { sandbox, path }) => {
                    check_source(source)?;
                    let sandbox = find(client, sandbox).await?;
                    let files = Files::new(client, &sandbox, self.user.as_deref());
                    files.upload(source, path).await
                }
                (Place::There { sandbox, path }, Place::Here(target)) => {
                    let sandbox = find(client, sandbox).await?;
                    let files = Files::new(client, &sandbox, self.user.as_deref());
                    files.download(path, target).await
                }
                _ => Err(Error::invalid(
                    "source",
                    "one of both is in a sandbox, and the other is not",
                    "write that one as SANDBOX:PATH",
                )),
            })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Checks that the source exists.
pub(crate) fn check_source(source: &Path) -> Result<(), Error> {
    let found = std::fs::metadata(source);
    found
        .map(|_| ())
        .map_err(|error| pack::unreadable(source, &error))
}

/// Files of one sandbox as one user.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    client: &'a Client,
    sandbox: &'a str,
    user: Option<&'a str>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(client: &'a Client, sandbox: &'a str, user: Option<&'a str>) -> Self {
        Self {
            client,
            sandbox,
            user,
        }
    }

    fn path(&self, call: &[&str], parameters: &[(&str, &str)]) -> String {
        file_call(self.sandbox, call, parameters, self.user)
    }

    /// Uploads a file or directory.
    pub(crate) async fn upload(&self, source: &Path, target: &str) -> Result<(), Error> {
        let found = std::fs::metadata(source).map_err(|error| pack::unreadable(source, &error))?;
        let contents = source.as_os_str().as_encoded_bytes();
        let contents = contents == b"." || contents.ends_with(b"/.");
        let there = match look(self.client, self.sandbox, target, self.user).await {
            Ok((_, directory)) => Some(directory),
            Err(error) if error.code.category() == Category::NotFound => None,
            Err(error) => return Err(error),
        };
        let into = target.ends_with('/') || there == Some(true);
        let name = source.canonicalize().ok();
        let name = name.as_deref().and_then(Path::file_name);
        let target = match name {
            Some(name) if into && !contents => {
                let name = name.to_str().ok_or_else(|| {
                    let message = format!("the name of {} is no text", source.display());
                    Error::invalid("source", message, "name the target, too")
                })?;
                format!("{}/{name}", target.trim_end_matches('/'))
            }
            _ => target.to_owned(),
        };
        if found.is_dir() {
            let path = self.path(&["archive"], &[("path", &target)]);
            return pack::directory(self.client, &path, source).await;
        }
        let mode = {
            use std::os::unix::fs::PermissionsExt as _;
            format!("{:o}", found.permissions().mode() & 0o777)
        };
        let path = self.path(&[], &[("path", &target), ("mode", &mode)]);
        pack::file(self.client, &path, source, found.len()).await
    }

    /// Downloads a file or directory.
    pub(crate) async fn download(&self, source: &str, target: &Path) -> Result<(), Error> {
        let (entry, directory) = look(self.client, self.sandbox, source, self.user).await?;
        let contents = source == "." || source.ends_with("/.");
        let name = source.trim_end_matches('/').rsplit('/').next();
        let name = name.filter(|name| !["", ".", "..", "~"].contains(name) && !contents);
        let mut target = target.to_owned();
        let slashed = target.as_os_str().as_encoded_bytes().ends_with(b"/");
        if (target.is_dir() || slashed)
            && let Some(name) = name
        {
            target.push(name);
        }
        if directory {
            let path = self.path(&["archive"], &[("path", source)]);
            return unpack::directory(self.client, &path, &target).await;
        }
        let mode = u32::from_str_radix(text(&entry, "mode"), 8).ok();
        let mode = mode.filter(|_| text(&entry, "type") == "file");
        let size = entry["size"].as_u64().unwrap_or(0);
        let path = self.path(&[], &[("path", source)]);
        download::save(self.client, &path, &target, mode.unwrap_or(0o644), size).await
    }
}

/// Shows the progress of a copy on a terminal.
pub(super) fn bar(what: &str, size: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let form = if size.is_some() {
        "{msg} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {bytes_per_sec} {elapsed}"
    } else {
        "{msg} {spinner} {bytes} {bytes_per_sec} {elapsed}"
    };
    let style = ProgressStyle::with_template(form);
    let bar = ProgressBar::new(size.unwrap_or(0));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

/// Prints which entries were skipped.
fn report_skipped(count: u64, first: &[String]) {
    if count > 0 {
        let more = if count > first.len() as u64 {
            ", …"
        } else {
            ""
        };
        eprint_line(&format!(
            "atoll: left out {count}: {}{more}",
            first.join(", ")
        ));
    }
}
