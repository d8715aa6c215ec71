//! `atoll template`.

mod remote;

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use atoll_client::Client;
use atoll_model::{Bytes, Error};
use atoll_worker::template::{self, Source, TemplateOptions, TemplateStore};
use clap::Subcommand;

use super::local::{Local, LocalOrRemote};
use super::progress::Bar;
use super::{block_on, print_line};
use crate::cli::borderless_table;
use crate::config::Config;

/// List, add, rebuild and remove templates: the root file systems of sandboxes.
///
/// The commands act on the server that `--url`, `--profile`, `ATOLL_URL`, `ATOLL_API_KEY` or `atoll
/// login` selects, else on this machine.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll template ls
  atoll template add node ./rootfs
  atoll template add alpine alpine-minirootfs.tar.gz
  atoll template rebuild base")]
pub(crate) enum Template {
    /// List templates.
    #[command(visible_alias = "list")]
    Ls {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: LocalOrRemote,
    },
    /// Add a template from a directory or a tar archive (plain, gzip or zstd).
    #[command(after_help = "Examples:
  atoll template add node ./rootfs
  atoll template add alpine alpine-minirootfs.tar.gz --no-sudo")]
    Add {
        /// Name of the template: 1 to 63 of a-z 0-9 . _ -
        name: String,
        /// The directory or archive.
        source: PathBuf,
        /// Replace a template of that name.
        #[arg(long)]
        replace: bool,
        /// Environment variable of every sandbox of this template.
        #[arg(long = "env", short = 'e', value_name = "K=V")]
        env: Vec<String>,
        /// Disable setuid programs, with nosuid and `no_new_privs`.
        #[arg(long)]
        no_sudo: bool,
        /// Let sandboxes create user namespaces (for bubblewrap or rootless containers); this
        /// exposes more of the kernel to them.
        #[arg(long)]
        nested_user_namespaces: bool,
        #[command(flatten)]
        place: LocalOrRemote,
    },
    /// Rebuild a template from its source; the source of `base` is this machine's own system.
    Rebuild {
        /// Name of the template.
        name: String,
        #[command(flatten)]
        local: Local,
    },
    /// Remove a template that no sandbox uses, running or stopped.
    #[command(visible_alias = "delete")]
    Rm {
        /// Name of the template.
        name: String,
        #[command(flatten)]
        place: LocalOrRemote,
    },
}

/// The templates of a data directory.
pub(crate) fn store(config: &Config) -> Result<TemplateStore, Error> {
    let data = &config.data;
    atoll_worker::instance::data_directory(data)?;
    Ok(TemplateStore::open(config.templates())?)
}

impl Template {
    pub(crate) fn run(self, config: &Config) -> Result<ExitCode, Error> {
        if let Self::Rebuild { local, .. } = &self {
            local.require("template rebuild", config)?;
        }
        match self.server(config)? {
            Some(client) => block_on(self.remote(&client))?,
            None => self.local(config)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The server to act on; `None` is this machine.
    fn server(&self, config: &Config) -> Result<Option<Client>, Error> {
        match self {
            Self::Ls { place, .. } | Self::Add { place, .. } | Self::Rm { place, .. } => {
                place.client(config)
            }
            Self::Rebuild { .. } => Ok(None),
        }
    }

    fn local(self, config: &Config) -> Result<(), Error> {
        let store = store(config)?;
        match self {
            Self::Ls { json, .. } => list(&store, json)?,
            Self::Add {
                name,
                source,
                replace,
                env,
                no_sudo,
                nested_user_namespaces,
                ..
            } => {
                let source = if metadata(&source)?.is_dir() {
                    Source::Directory(source)
                } else {
                    Source::Archive(source)
                };
                let options = TemplateOptions {
                    env: variables(&env)?.into_iter().collect::<BTreeMap<_, _>>(),
                    sudo: !no_sudo,
                    nested_user_namespaces,
                    replace,
                    ..TemplateOptions::default()
                };
                let mut bar = Bar::new(&format!("adding template {name}"));
                let added = store.add(&name, &source, &options, &mut |progress| {
                    bar.show(&progress);
                });
                drop(bar);
                report(&name, &added?);
            }
            Self::Rebuild { name, .. } => {
                if name != template::BASE {
                    store.get(&name)?;
                    return Err(Error::invalid(
                        "name",
                        format!("template {name:?} was not made from this machine"),
                        format!("add it again: atoll template add {name} SOURCE --replace"),
                    ));
                }
                let mut bar = Bar::new("making template base from this machine's system");
                let built = store.rebuild_base(&mut |progress| bar.show(&progress));
                drop(bar);
                report(&name, &built?);
            }
            Self::Rm { name, .. } => {
                store.remove(&name)?;
                print_line(&format!("removed template {name}"));
            }
        }
        Ok(())
    }
}

fn metadata(source: &Path) -> Result<Metadata, Error> {
    std::fs::metadata(source).map_err(|error| {
        let message = format!("the source {} cannot be read: {error}", source.display());
        Error::invalid("source", message, "name a directory or a tar archive")
    })
}

fn report(name: &str, report: &template::Report) {
    let skipped = match report.skipped {
        0 => String::new(),
        n => format!(", {n} entries left out"),
    };
    print_line(&format!(
        "template {name}: {} files, {}{skipped}",
        report.files,
        Bytes(report.bytes)
    ));
}

fn list(store: &TemplateStore, json: bool) -> Result<(), Error> {
    let names = store.list()?;
    let all: Vec<_> = names
        .iter()
        .filter_map(|name| store.get(name).ok())
        .collect();
    if json {
        let rows: Vec<_> = all
            .iter()
            .map(|template| serde_json::json!({ "name": template.name, "meta": template.meta }))
            .collect();
        print_line(&serde_json::Value::from(rows).to_string());
        return Ok(());
    }
    if all.is_empty() {
        print_line("no templates yet: the first atoll run makes base");
        return Ok(());
    }
    let mut table = borderless_table();
    table.set_header(["NAME", "FILES", "SIZE", "USER", "SUDO", "SOURCE"]);
    for template in &all {
        let meta = &template.meta;
        table.add_row([
            template.name.clone(),
            meta.files.to_string(),
            Bytes(meta.size).to_string(),
            meta.user.name.clone(),
            if meta.sudo { "yes" } else { "no" }.to_owned(),
            meta.source.clone(),
        ]);
    }
    print_line(&table.to_string());
    for (name, count) in store.replaced()? {
        let sandboxes = if count == 1 { "sandbox" } else { "sandboxes" };
        print_line(&format!(
            "an older {name} stays for {count} {sandboxes} made from it; atoll gc removes it after them"
        ));
    }
    Ok(())
}

/// Parses `K=V` options.
pub(crate) fn variables(words: &[String]) -> Result<Vec<(String, String)>, Error> {
    words
        .iter()
        .map(|word| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(Error::invalid(
                "env",
                format!("{word:?} is not NAME=VALUE"),
                "write --env NAME=VALUE",
            )),
        })
        .collect()
}
