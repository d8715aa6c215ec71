//! Selection of the server and of the sandbox: by id, name, or a unique prefix of either.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use atoll_client::{Client, Request, Target, path, query};
use atoll_model::{Category, Code, Error, SandboxId};
use clap::Args;
use comfy_table::Table;
use serde_json::Value;

use super::{block_on, borderless_table, print_error, print_line, remedies};
use crate::config::Config;
use crate::config::profiles::Profiles;

/// Options that select the server.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Remote {
    /// URL of the server [default: `ATOLL_URL`, a profile of `atoll login`, or the operator's
    /// socket of this machine].
    #[arg(long, value_name = "URL", help_heading = "Server")]
    url: Option<String>,
    /// Profile that `atoll login` stored.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "url",
        help_heading = "Server"
    )]
    profile: Option<String>,
}

/// Options of a command that can print JSON.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

impl Remote {
    /// Client of the selected server.
    pub(crate) fn client(&self, config: &Config) -> Result<Client, Error> {
        match self.configured(config)? {
            Some(client) => Ok(client),
            None => Ok(operator(&config.data, None)),
        }
    }

    /// The same, or `None` if no server is configured. A key alone selects the server of this
    /// machine: over the operator's socket a request with a key has the rights of that key.
    pub(crate) fn configured(&self, config: &Config) -> Result<Option<Client>, Error> {
        let Some((url, key)) = self.place(config)? else {
            let key = config.api_key.clone();
            return Ok(key.map(|key| operator(&config.data, Some(key))));
        };
        Ok(Some(client(url.parse()?, key, config)))
    }

    /// Whether a server is configured, or one of this machine listens.
    pub(crate) fn exists(&self, config: &Config) -> Result<bool, Error> {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        if self.place(config)?.is_some() {
            return Ok(true);
        }
        let listens = UnixStream::connect(config.data.join("run/api.sock"));
        Ok(!listens.is_err_and(|error| matches!(error.kind(), ConnectionRefused | NotFound)))
    }

    /// The URL from the command line only.
    pub(crate) fn url_argument(&self) -> Option<(String, Option<String>)> {
        self.url.clone().map(|url| (url, None))
    }

    /// URL and key of the server, if one is configured.
    pub(crate) fn place(&self, config: &Config) -> Result<Option<(String, Option<String>)>, Error> {
        let url = self.url.as_ref().or_else(|| {
            // A profile on the command line takes precedence over the environment.
            config.url.as_ref().filter(|_| self.profile.is_none())
        });
        let key = config.api_key.clone();
        if let Some(url) = url {
            return Ok(Some((url.clone(), key)));
        }
        let Some(file) = &config.profiles else {
            return Ok(None);
        };
        let profiles = Profiles::read(file)?;
        let Some(profile) = profiles.find(self.profile.as_deref(), file)? else {
            return Ok(None);
        };
        let named = profile.api_key.clone();
        let key = if self.profile.is_some() {
            named.or(key)
        } else {
            key.or(named)
        };
        Ok(Some((profile.url.clone(), key)))
    }

    /// Runs a function with a client.
    pub(crate) fn with<T>(
        &self,
        config: &Config,
        work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let client = self.client(config)?;
        block_on(work(&client))
    }
}

/// Creates a client with remedies for the command line.
pub(crate) fn client(target: Target, key: Option<String>, config: &Config) -> Client {
    let client = Client::new(target, key).remedies(remedies::of_refusal);
    client.ca_file(config.authorities.clone())
}

/// Creates a client of this machine's server, over the operator's socket.
pub(crate) fn operator(data: &Path, key: Option<String>) -> Client {
    let target = Target::socket(data.join("run/api.sock"));
    Client::new(target, key).remedies(remedies::of_refusal)
}

/// API path of a resource of a sandbox.
pub(crate) fn below(sandbox: &str, parts: &[&str]) -> String {
    path(&[&["sandboxes", sandbox], parts].concat())
}

/// Request of the file API, as a user of the sandbox.
pub(crate) fn file_call(
    sandbox: &str,
    call: &[&str],
    parameters: &[(&str, &str)],
    user: Option<&str>,
) -> String {
    let user = user.map(|user| ("user", user));
    let parameters: Vec<_> = parameters.iter().copied().chain(user).collect();
    query(&below(sandbox, &[&["files"], call].concat()), &parameters)
}

/// Resolves an id, name or prefix to the id for paths. A complete id needs no request.
pub(crate) async fn find(client: &Client, name: &str) -> Result<String, Error> {
    if name.parse::<SandboxId>().is_ok() {
        return Ok(name.to_owned());
    }
    if name.is_empty() {
        let remedy = "name a sandbox: `atoll ls` lists them";
        return Err(Error::invalid(
            "sandbox",
            "a sandbox has a name or an id",
            remedy,
        ));
    }
    let named = client.send_json(&Request::get(below(name, &[]))).await;
    match named {
        Ok(sandbox) => return Ok(text(&sandbox, "sandboxID").to_owned()),
        Err(error) if error.code.category() == Category::NotFound => {}
        Err(error) => return Err(error),
    }
    let all = client.list("/sandboxes", &[]).await?;
    let begins = |sandbox: &&Value| {
        text(sandbox, "sandboxID").starts_with(name) || text(sandbox, "alias").starts_with(name)
    };
    let found: Vec<&Value> = all.iter().filter(begins).collect();
    match found.as_slice() {
        [one] => Ok(text(one, "sandboxID").to_owned()),
        [] => Err(Error::new(
            Code::SandboxNotFound,
            format!("there is no sandbox {name:?}"),
        )
        .remedy("`atoll ls` lists those that there are")),
        many => {
            let message = format!("{} sandboxes begin with {name:?}", many.len());
            let remedy = format!("say more of it: {}", some_of(many));
            Err(Error::invalid("sandbox", message, remedy))
        }
    }
}

/// Formats the first names of a list.
fn some_of(many: &[&Value]) -> String {
    const FEW: usize = 5;
    let name = |one: &&Value| match text(one, "alias") {
        "" => text(one, "sandboxID").to_owned(),
        alias => format!("{alias} ({})", text(one, "sandboxID")),
    };
    let few: Vec<String> = many.iter().take(FEW).map(name).collect();
    let more = match many.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("{}{more}", few.join(", "))
}

/// A string field; empty if missing.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Prints JSON.
pub(crate) fn print_json(value: &Value) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value);
    print_line(&text.map_err(|error| Error::new(Code::Internal, error.to_string()))?);
    Ok(())
}

/// Removes control characters from untrusted text.
pub(crate) fn plain(text: &str) -> String {
    let shown = |letter: char| {
        if letter.is_control() {
            '\u{fffd}'
        } else {
            letter
        }
    };
    text.chars().map(shown).collect()
}

/// Prints a string field of each object, one per line.
pub(crate) fn print_each(objects: &[Value], field: &str) {
    for object in objects {
        print_line(text(object, field));
    }
}

/// Prints the fields of an object, one per row.
pub(crate) fn fields(object: &Value) -> Table {
    let mut table = borderless_table();
    for (name, value) in object.as_object().into_iter().flatten() {
        let shown = match value {
            Value::String(text) => plain(text),
            Value::Null => "-".into(),
            value => value.to_string(),
        };
        table.add_row([name.clone(), shown]);
    }
    table
}

/// Quotes an argument for a shell, without control characters.
pub(crate) fn quoted(word: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_bare) {
        return word.to_owned();
    }
    format!("'{}'", plain(word).replace('\'', r"'\''"))
}

/// Truncates a text to a column of a table.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST - 1).chain(['…']).collect()
}

/// Acts on the names in order; a failure does not stop the others. The exit code is that of the
/// first failure.
pub(crate) async fn each(
    names: &[String],
    mut act: impl AsyncFnMut(&str) -> Result<(), Error>,
) -> ExitCode {
    let mut failed = None;
    for name in names {
        if let Err(error) = act(name).await {
            print_error(&error);
            failed = failed.or(Some(error.code.exit_code()));
        }
    }
    failed.map_or(ExitCode::SUCCESS, ExitCode::from)
}
