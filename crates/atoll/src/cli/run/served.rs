//! The same run in a sandbox of a server: made for it, renewed while we are there, and deleted at its end. If we are killed, its
//! time is up soon after.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use atoll_client::{Client, Exit, Request};
use atoll_model::{Code, Error, Limits};
use serde_json::json;

use super::super::cp::{Files, check_source};
use super::super::remote::{below, text};
use super::super::sandbox::{create, described};
use super::super::template::variables;
use super::super::{complain, exec, shell};
use super::{Run, Signals, terminal};

/// How long a sandbox outlives us.
const LEFT: u32 = 120;
/// How often it is told that we are there.
const RENEWED: Duration = Duration::from_secs(30);

impl Run {
    /// Runs the command on a server.
    pub(super) async fn served(&self, client: &Client) -> Result<u8, Error> {
        self.check_served(client)?;
        for upload in &self.upload {
            check_source(Path::new(&upload.source))?;
        }
        let limits = self.limits();
        let mut asked = described(limits, self.net, &self.allow, &self.deny)?;
        asked.insert("template".into(), json!(self.template));
        asked.insert("timeout".into(), json!(LEFT));
        let asked = asked.into();
        // From here on signals are ours to pass on; the sandbox must not outlive us.
        let mut signals = Signals::new()?;
        let made = create(client, &asked).await?;
        let id = text(&made, "sandboxID");
        let done = tokio::select! {
            done = self.in_served(client, id, limits, &mut signals) => done,
            error = renew(client, id) => Err(error),
        };
        // Whatever happened, nothing of the sandbox stays.
        let deleted = client.ask(&Request::delete(below(id, &[]))).await;
        let code = done?;
        match deleted {
            // Its time was up, or somebody else was quicker.
            Err(error) if error.code != Code::SandboxNotFound => Err(error),
            _ => Ok(code),
        }
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
        for upload in &self.upload {
            files
                .upload(Path::new(&upload.source), &upload.target)
                .await?;
        }
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
            let session = shell::Session::make(client, id, &asked, size).await?;
            session.show(signals).await?
        } else {
            let asked = exec::Asked {
                command: &command,
                environment,
                cwd,
                user,
                deadline: self.timeout,
            };
            let exit = asked.pass(client, id, signals).await?;
            asked.explain(exit, Some(limits.memory));
            exit
        };
        let code = exit.exit_code as u8;
        for download in &self.download {
            let target = Path::new(&download.target);
            if let Err(error) = files.download(&download.source, target).await {
                // A command that failed has said so already; its code is the one to tell.
                if code == 0 {
                    return Err(error);
                }
                complain(&error);
            }
        }
        Ok(code)
    }

    /// What only this machine's own engine can do is refused.
    fn check_served(&self, client: &Client) -> Result<(), Error> {
        let only_here = [
            ("name", self.name.is_some()),
            ("mount", !self.mount.is_empty()),
            ("keep", self.keep),
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

/// Says again and again that we are there; ends when that makes no sense any more.
async fn renew(client: &Client, id: &str) -> Error {
    let request = Request::post(below(id, &["timeout"]), &json!({ "timeout": LEFT })).repeatable();
    loop {
        tokio::time::sleep(RENEWED).await;
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
