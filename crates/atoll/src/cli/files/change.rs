//! `atoll files mv`, `cp`, `chmod` and `chown`: changes of files within a sandbox.

use std::process::ExitCode;

use atoll_client::{Client, Request};
use atoll_model::{Category, Error};
use clap::Args;
use serde_json::{Value, json};

use super::{Common, look};
use crate::cli::block_on;
use crate::cli::server_args::{each, find};
use crate::config::Config;

/// Whether the source is moved or copied.
#[derive(Debug, Clone, Copy)]
pub(super) enum Transfer {
    Move,
    Copy,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files mv web notes.txt old/notes.txt
  atoll files cp web src backup
  atoll files mv web --force new.conf /srv/app.conf")]
pub(crate) struct FromTo {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// The file or directory in the sandbox.
    from: String,
    /// New path in the sandbox. If this is an existing directory, the target is placed in it under
    /// the same name.
    to: String,
    /// Replace an existing file at the new path.
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    common: Common,
}

/// Set permission bits of files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files chmod web 755 run.sh
  atoll files chmod web 600 .ssh/id_ed25519 .ssh/config")]
pub(crate) struct Chmod {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Permission bits in octal, such as 644 or 0755.
    #[arg(value_parser = octal)]
    mode: String,
    /// Files and directories in the sandbox.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Set the owner of files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files chown web user /home/user/work --user root
  atoll files chown web www-data:www-data /srv/www --user root")]
pub(crate) struct Chown {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Names or numbers: OWNER, OWNER:GROUP or :GROUP.
    #[arg(value_name = "OWNER")]
    owner: String,
    /// Files and directories in the sandbox.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    common: Common,
}

fn octal(text: &str) -> Result<String, Error> {
    let is_octal =
        (1..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    if is_octal {
        return Ok(text.to_owned());
    }
    let message = format!("{text:?} are not permission bits");
    Err(Error::invalid(
        "mode",
        message,
        "write them in octal, such as 644 or 0755",
    ))
}

impl FromTo {
    pub(super) fn run(&self, transfer: Transfer, config: &Config) -> Result<(), Error> {
        let call = match transfer {
            Transfer::Move => "rename",
            Transfer::Copy => "copy",
        };
        self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let to = self.target(client, &id).await?;
            let body = json!({ "from": self.from, "to": to, "replace": self.force });
            let path = self.common.path(&id, &[call], &[]);
            client
                .send_buffered(&Request::post(path, &body))
                .await
                .map(|_| ())
        })
    }

    /// The final path: below the target if that is a directory.
    async fn target(&self, client: &Client, sandbox: &str) -> Result<String, Error> {
        let user = self.common.user.as_deref();
        let is_directory = match look(client, sandbox, &self.to, user).await {
            Ok((_, is_directory)) => is_directory,
            Err(error) if error.code.category() == Category::NotFound => self.to.ends_with('/'),
            Err(error) => return Err(error),
        };
        if !is_directory {
            return Ok(self.to.clone());
        }
        let name = self.from.trim_end_matches('/');
        let name = name.rsplit('/').next().unwrap_or_default();
        if matches!(name, "" | "." | ".." | "~") {
            let message = format!("{:?} has no name to keep", self.from);
            let remedy = "give the whole new path";
            return Err(Error::invalid("to", message, remedy));
        }
        Ok(format!("{}/{name}", self.to.trim_end_matches('/')))
    }
}

impl Common {
    /// Sends one request for each path.
    fn change(
        &self,
        sandbox: &str,
        call: &str,
        paths: &[String],
        body: &Value,
        config: &Config,
    ) -> Result<ExitCode, Error> {
        let client = self.remote.client(config)?;
        block_on(async {
            let id = find(&client, sandbox).await?;
            let change = async |path: &str| {
                let mut body = body.clone();
                body["path"] = json!(path);
                let request = Request::post(self.path(&id, &[call], &[]), &body);
                // The request is idempotent.
                client
                    .send_buffered(&request.idempotent())
                    .await
                    .map(|_| ())
            };
            Ok(each(paths, change).await)
        })
    }
}

impl Chmod {
    pub(super) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let body = json!({ "mode": self.mode });
        self.common
            .change(&self.sandbox, "chmod", &self.paths, &body, config)
    }
}

impl Chown {
    pub(super) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let (owner, group) = self.owner.split_once(':').unwrap_or((&self.owner, ""));
        let mut body = json!({});
        for (field, name) in [("owner", owner), ("group", group)] {
            if !name.is_empty() {
                body[field] = json!(name);
            }
        }
        if body == json!({}) {
            let message = format!("{:?} names neither an owner nor a group", self.owner);
            let remedy = "write it as OWNER, OWNER:GROUP or :GROUP";
            return Err(Error::invalid("owner", message, remedy));
        }
        self.common
            .change(&self.sandbox, "chown", &self.paths, &body, config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_bits_are_octal() {
        for text in ["0", "644", "0755", "7777"] {
            assert!(octal(text).is_ok(), "{text}");
        }
        for text in ["", "8", "u+x", "00644", "-1", "0o644"] {
            assert!(octal(text).is_err(), "{text}");
        }
    }
}
