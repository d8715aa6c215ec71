//! `atoll files`: lists, reads, searches and changes files of a sandbox.

mod change;
mod search;

use std::process::ExitCode;

use atoll_client::{Client, Event, Request};
use atoll_model::{Bytes, Error};
use clap::{Args, Subcommand};
use comfy_table::CellAlignment;
use serde_json::{Value, json};

use super::cp::download;
use super::server_args::{Remote, fields, file_call, find, plain, print_json, text};
use super::{check_stdout, eprint_line, print_line};
use crate::cli::borderless_table;
use crate::config::Config;
use change::Transfer;

/// List, read, search and change files of a sandbox.
///
/// Relative paths, and ~, start at the user's home. `atoll cp` copies files into and out of a
/// sandbox.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll files ls web
  atoll files cat web /etc/hostname
  atoll files search web --name '*.py' --content TODO
  atoll files mv web notes.txt old/
  atoll files watch web work --recursive")]
pub(crate) enum Files {
    #[command(visible_alias = "list")]
    Ls(Ls),
    /// Show the metadata of one path, without following a symbolic link.
    Stat(Stat),
    /// Write a file to standard output.
    #[command(visible_alias = "read")]
    Cat(One),
    #[command(visible_aliases = ["find", "grep"])]
    Search(search::Search),
    #[command(visible_alias = "delete")]
    Rm(Rm),
    /// Create a directory and its missing parents.
    Mkdir(One),
    /// Move or rename a file or directory within the sandbox.
    #[command(visible_aliases = ["move", "rename"])]
    Mv(change::FromTo),
    /// Copy a file or directory within the sandbox; `atoll cp` copies into and out of it.
    #[command(visible_alias = "copy")]
    Cp(change::FromTo),
    Chmod(change::Chmod),
    Chown(change::Chown),
    Watch(Watch),
}

/// User and server of a file command.
#[derive(Debug, Args)]
struct Common {
    /// Act as this user of the sandbox [default: the template's].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Common {
    /// Calls the file API for one path.
    fn path(&self, sandbox: &str, call: &[&str], parameters: &[(&str, &str)]) -> String {
        file_call(sandbox, call, parameters, self.user.as_deref())
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files cat web notes.txt
  atoll files mkdir web work/out")]
pub(crate) struct One {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// The path in the sandbox.
    path: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files stat web notes.txt
  atoll files stat web /etc/passwd --json | jq -r .mode")]
pub(crate) struct Stat {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// The path in the sandbox.
    path: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

/// List a directory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files ls web
  atoll files ls web /srv --depth 3 --json | jq -r '.[].path'")]
pub(crate) struct Ls {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// The directory.
    #[arg(default_value = ".")]
    path: String,
    /// Number of levels to list.
    #[arg(long, default_value_t = 1, value_name = "N")]
    depth: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

/// Remove files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files rm web old.txt
  atoll files rm -r web build")]
pub(crate) struct Rm {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Files and directories in the sandbox.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Remove directories with their contents.
    #[arg(long, short)]
    recursive: bool,
    #[command(flatten)]
    common: Common,
}

/// Print changes in a directory until the directory is removed or the sandbox ends.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files watch web work --recursive
  atoll files watch web . --json")]
pub(crate) struct Watch {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// The directory.
    #[arg(default_value = ".")]
    path: String,
    /// Include all subdirectories.
    #[arg(long, short)]
    recursive: bool,
    /// Print JSON, one line per event.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

impl Files {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Ls(ls) => ls.run(config)?,
            Self::Stat(stat) => stat.run(config)?,
            Self::Cat(cat) => cat.cat(config)?,
            Self::Search(search) => search.run(config)?,
            Self::Rm(rm) => rm.run(config)?,
            Self::Mkdir(mkdir) => mkdir.mkdir(config)?,
            Self::Mv(mv) => mv.run(Transfer::Move, config)?,
            Self::Cp(cp) => cp.run(Transfer::Copy, config)?,
            Self::Chmod(chmod) => return chmod.run(config),
            Self::Chown(chown) => return chown.run(config),
            Self::Watch(watch) => watch.run(config)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl One {
    fn cat(&self, config: &Config) -> Result<(), Error> {
        self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let path = self.common.path(&id, &[], &[("path", &self.path)]);
            let mut stdout = std::io::stdout();
            download::file(client, &path, &mut stdout, &mut |_| {}).await
        })
    }

    fn mkdir(&self, config: &Config) -> Result<(), Error> {
        self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let path = self.common.path(&id, &["mkdir"], &[]);
            let body = json!({ "path": self.path });
            client
                .send_buffered(&Request::post(path, &body).idempotent())
                .await?;
            Ok(())
        })
    }
}

impl Stat {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let entry = self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let path = self.common.path(&id, &["stat"], &[("path", &self.path)]);
            client.send_json(&Request::get(path)).await
        })?;
        if self.json {
            return print_json(&entry);
        }
        print_line(&fields(&entry).to_string());
        Ok(())
    }
}

impl Ls {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let answer = self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let depth = self.depth.to_string();
            let parameters = [("path", self.path.as_str()), ("depth", depth.as_str())];
            client
                .send_json(&Request::get(self.common.path(&id, &["list"], &parameters)))
                .await
        })?;
        if self.json {
            return print_json(&answer);
        }
        let mut table = borderless_table();
        for entry in answer.as_array().into_iter().flatten() {
            let size = Bytes(entry["size"].as_u64().unwrap_or(0)).to_string();
            let modified = text(entry, "modifiedAt");
            let name = match (text(entry, "type"), text(entry, "target")) {
                ("directory", _) => format!("{}/", plain(text(entry, "path"))),
                ("link", target) => format!("{} → {}", plain(text(entry, "path")), plain(target)),
                _ => plain(text(entry, "path")),
            };
            table.add_row([
                text(entry, "mode").to_owned(),
                size,
                modified.get(..19).unwrap_or(modified).replace('T', " "),
                name,
            ]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if table.row_count() > 0 {
            print_line(&table.to_string());
        }
        Ok(())
    }
}

impl Rm {
    fn run(&self, config: &Config) -> Result<(), Error> {
        self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            for path in &self.paths {
                let recursive = self.recursive.to_string();
                let parameters = [("path", path.as_str()), ("recursive", recursive.as_str())];
                let path = self.common.path(&id, &[], &parameters);
                client.send_buffered(&Request::delete(path)).await?;
            }
            Ok(())
        })
    }
}

impl Watch {
    fn run(&self, config: &Config) -> Result<(), Error> {
        self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let recursive = self.recursive.to_string();
            let parameters = [
                ("path", self.path.as_str()),
                ("recursive", recursive.as_str()),
            ];
            let path = self.common.path(&id, &["watch"], &parameters);
            let mut events = client.events(Request::get(path)).without_resume();
            while let Some(event) = events.next().await? {
                self.show(event);
                check_stdout()?;
            }
            Ok(())
        })
    }

    fn show(&self, Event { name, mut data }: Event) {
        if self.json {
            data["event"] = json!(name);
            return print_line(&data.to_string());
        }
        let path = plain(text(&data, "path"));
        match name.as_str() {
            "rename" => print_line(&format!("rename {} → {path}", plain(text(&data, "from")))),
            "overflow" => eprint_line("atoll: some events are missing: list the directory again"),
            "break" => eprint_line("atoll: the connection was lost: list the directory again"),
            "limit" => eprint_line("atoll: more directories than can be watched"),
            "end" => eprint_line(&format!(
                "atoll: the watch ended: {}",
                text(&data, "reason")
            )),
            name => print_line(&format!("{name} {path}")),
        }
    }
}

/// Looks up a path: the entry itself, and whether it is a directory after following links.
pub(super) async fn look(
    client: &Client,
    sandbox: &str,
    path: &str,
    user: Option<&str>,
) -> Result<(Value, bool), Error> {
    let parameters = [("path", path), ("limit", "1")];
    let stat = file_call(
        sandbox,
        &["stat"],
        parameters.get(..1).unwrap_or_default(),
        user,
    );
    let entry = client.send_json(&Request::get(stat)).await?;
    let directory = match text(&entry, "type") {
        "directory" => true,
        "link" => {
            let list = Request::get(file_call(sandbox, &["list"], &parameters, user));
            client.send_json(&list).await.is_ok()
        }
        _ => false,
    };
    Ok((entry, directory))
}
