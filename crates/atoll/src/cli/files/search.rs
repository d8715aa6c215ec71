//! `atoll files search`: finds files by their names or by text in them.

use atoll_client::Request;
use atoll_model::Error;
use clap::Args;
use serde_json::Value;

use super::Common;
use crate::cli::server_args::{find, plain, print_json, text};
use crate::cli::{eprint_line, print_line};
use crate::config::Config;

/// Find files by name, by content, or by both.
///
/// With --content, each line that contains the text is printed as PATH:LINE: TEXT.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll files search web --name '*.py'
  atoll files search web src --content TODO
  atoll files search web / --name '*.conf' --content listen --user root")]
pub(crate) struct Search {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// The directory to search, recursively.
    #[arg(default_value = ".")]
    path: String,
    /// Pattern of file names, such as '*.py'.
    #[arg(long, value_name = "PATTERN", required_unless_present = "content")]
    name: Option<String>,
    /// Text to find in files.
    #[arg(long, value_name = "TEXT")]
    content: Option<String>,
    /// Maximum number of results, at most 1000.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

impl Search {
    pub(super) fn run(&self, config: &Config) -> Result<(), Error> {
        let limit = self.limit.to_string();
        let mut parameters = vec![("path", self.path.as_str()), ("limit", limit.as_str())];
        parameters.extend(self.name.as_deref().map(|name| ("query", name)));
        parameters.extend(self.content.as_deref().map(|text| ("content", text)));
        let found = self.common.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let path = self.common.path(&id, &["search"], &parameters);
            client.send_json(&Request::get(path)).await
        })?;
        if self.json {
            return print_json(&found);
        }
        for file in found["results"].as_array().into_iter().flatten() {
            print_line(&line(&self.path, file));
        }
        if found["truncated"] == true {
            eprint_line(&format!(
                "atoll: these are the first {limit}; --limit shows more"
            ));
        }
        Ok(())
    }
}

/// A result as a path that other commands take: the server's are below the directory.
fn line(directory: &str, file: &Value) -> String {
    let path = text(file, "path");
    let path = match directory.trim_end_matches('/') {
        "." => plain(path),
        directory => plain(&format!("{directory}/{path}")),
    };
    match file["line"].as_u64() {
        Some(line) => format!("{path}:{line}: {}", plain(text(file, "text"))),
        None => path,
    }
}
