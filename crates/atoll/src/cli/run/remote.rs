//! The same run in a sandbox of a server: made for it, renewed while we are there, and deleted at its end. If we are killed, its
//! time is up soon after.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use atoll_client::{Client, Exit, Request};
use atoll_model::{Code, Error, Limits};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::cp::{Files, check_source};
use super::super::sandbox::{create, described};
use super::super::server_args::{below, text};
use super::super::template::variables;
use super::super::{exec, print_error, shell};
use super::{Run, Signals, ended_by, terminal};

/// How long a sandbox outlives us.
const ORPHAN_TIMEOUT_SECS: u32 = 120;
/// How long a sandbox that nobody wants any more is waited for; one that is left ends by itself.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often it is told that we are there.
const RENEW_INTERVAL: Duration = Duration::from_secs(30);

impl Run {
    /// Runs the command on a server.
    pub(super) async fn run_remote(&self, client: &Client) -> Result<u8, Error> {
        self.check_served(client)?;
        for upload in &self.upload {
            check_source(Path::new(&upload.source))?;
        }
        let limits = self.limits();
        let mut asked = described(limits, self.net, &self.allow, &self.deny)?;
        asked.insert("template".into(), json!(self.template));
        asked.insert("timeout".into(), json!(ORPHAN_TIMEOUT_SECS));
        let asked = asked.into();
        // From here on signals are ours to pass on; the sandbox must not outlive us.
        let mut signals = Signals::new()?;
        let made = made(client, &asked, &mut signals).await?;
        let id = text(&made, "sandboxID");
        let done = tokio::select! {
            done = self.in_served(client, id, limits, &mut signals) => done,
            error = renew(client, id) => Err(error),
        };
        // Whatever happened, nothing of the sandbox stays.
        let deleted = deleted(client, id, &mut signals).await;
        let code = done?;
        deleted.map(|()| code)
    }

    async fn in_served(
        &self,
        client: &Client,
        id: &str,
        limits: Limits,
        signals: &mut Signals,
    ) -> Result<u8, Error> {
        let user = self.user.as_deref();
        let files = Files::new(client, id, user);
        let uploading = async {
            for upload in &self.upload {
                let source = Path::new(&upload.source);
                files.upload(source, &upload.target).await?;
            }
            Ok(())
        };
        signals.unless(uploading).await?;
        let command = words(&self.command)?;
        let environment = variables(&self.env)?.into_iter().collect();
        let cwd = self.cwd.as_deref();
        let exit: Exit = if self.tty {
            let asked = shell::Asked {
                command: &command,
                environment,
                cwd,
                user,
            };
            let size = terminal::size()?;
            let making = shell::Session::make(client, id, &asked, size);
            let session = signals.unless(making).await?;
            let exit = session.show_for(self.timeout, signals).await?;
            exec::explain(exit, self.timeout, Some(limits.memory));
            exit
        } else {
            let asked = exec::Asked {
                command: &command,
                environment,
                cwd,
                user,
                deadline: self.timeout,
            };
            let exit = asked.pass(client, id, signals).await?;
            exec::explain(exit, self.timeout, Some(limits.memory));
            exit
        };
        let code = exit.exit_code as u8;
        let downloading = async {
            for download in &self.download {
                let target = Path::new(&download.target);
                if let Err(error) = files.download(&download.source, target).await {
                    // A command that failed has said so already; its code is the one to tell.
                    if code == 0 {
                        return Err(error);
                    }
                    print_error(&error);
                }
            }
            Ok(())
        };
        signals.unless(downloading).await?;
        Ok(code)
    }

    /// What only this machine's own engine can do is refused.
    fn check_served(&self, client: &Client) -> Result<(), Error> {
        let only_here = [
            ("name", self.name.is_some()),
            ("mount", !self.mount.is_empty()),
            ("keep", self.keep),
            ("egress-allow", !self.egress_allow.is_empty()),
            ("ca-file", !self.ca_file.is_empty()),
        ];
        let Some((field, _)) = only_here.iter().find(|(_, asked)| *asked) else {
            return Ok(());
        };
        Err(Error::invalid(
            field,
            format!(
                "--{field} is for runs on this machine, and this one is for {}",
                client.target()
            ),
            "leave it out, or add --local",
        ))
    }
}

/// Makes the sandbox. If a signal comes first, one that is made all the same is taken away.
async fn made(client: &Client, asked: &Value, signals: &mut Signals) -> Result<Value, Error> {
    let making = create(client, asked);
    tokio::pin!(making);
    let number = tokio::select! {
        made = &mut making => return made,
        number = signals.next() => number,
    };
    let taken_away = async {
        let made = making.await?;
        delete(client, text(&made, "sandboxID")).await
    };
    let _ = timeout(FAREWELL, taken_away).await;
    Err(ended_by(number))
}

/// Takes the sandbox away; when a signal comes, within a moment.
async fn deleted(client: &Client, id: &str, signals: &mut Signals) -> Result<(), Error> {
    let deleting = delete(client, id);
    tokio::pin!(deleting);
    let number = tokio::select! {
        deleted = &mut deleting => return deleted,
        number = signals.next() => number,
    };
    let deleted = timeout(FAREWELL, deleting).await;
    deleted.unwrap_or_else(|_| Err(ended_by(number)))
}

/// Takes the sandbox away. Its time may have been up, or somebody else quicker.
async fn delete(client: &Client, id: &str) -> Result<(), Error> {
    match client.ask(&Request::delete(below(id, &[]))).await {
        Err(error) if error.code != Code::SandboxNotFound => Err(error),
        _ => Ok(()),
    }
}

/// Says again and again that we are there; ends when that makes no sense any more.
async fn renew(client: &Client, id: &str) -> Error {
    let request = Request::post(
        below(id, &["timeout"]),
        &json!({ "timeout": ORPHAN_TIMEOUT_SECS }),
    )
    .idempotent();
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        if let Err(error) = client.ask(&request).await {
            return error;
        }
    }
}

/// Words that can be written as JSON.
fn words(command: &[OsString]) -> Result<Vec<String>, Error> {
    let word = |word: &OsString| {
        word.to_str().map(ToOwned::to_owned).ok_or_else(|| {
            let word = word.display();
            let message = format!("{word} is no text, and a server takes nothing else");
            Error::invalid("command", message, "add --local, or write it otherwise")
        })
    };
    command.iter().map(word).collect()
}
