//! `atoll run` on a server: creates a sandbox, renews its timeout while this process runs, and
//! deletes it at the end. If this process is killed, the sandbox expires soon after.

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

/// Timeout of the sandbox, which applies if this process is killed.
const ORPHAN_TIMEOUT_SECS: u32 = 120;
/// Timeout of the deletion after a signal; a remaining sandbox expires by itself.
const FAREWELL: Duration = Duration::from_secs(5);
/// Interval at which the timeout is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(30);

impl Run {
    /// Runs the command on a server.
    pub(super) async fn run_remote(&self, client: &Client) -> Result<u8, Error> {
        self.check_served(client)?;
        for upload in &self.upload {
            check_source(Path::new(&upload.source))?;
        }
        let limits = self.limits();
        let mut body = described(limits, self.net, &self.allow, &self.deny)?;
        body.insert("template".into(), json!(self.template));
        body.insert("timeout".into(), json!(ORPHAN_TIMEOUT_SECS));
        let body = body.into();
        // From here on signals are forwarded to the command; the sandbox must not outlive this
        // process.
        let mut signals = Signals::new()?;
        let made = create_unless_signalled(client, &body, &mut signals).await?;
        let id = text(&made, "sandboxID");
        let done = tokio::select! {
            done = self.in_served(client, id, limits, &mut signals) => done,
            error = renew(client, id) => Err(error),
        };
        // The sandbox is deleted in all cases.
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
            let request = shell::TerminalRequest {
                command: &command,
                environment,
                cwd,
                user,
            };
            let size = terminal::size()?;
            let making = shell::Session::make(client, id, &request, size);
            let session = signals.unless(making).await?;
            let exit = session.show_for(self.timeout, signals).await?;
            exec::explain(exit, self.timeout, Some(limits.memory));
            exit
        } else {
            let request = exec::ExecRequest {
                command: &command,
                environment,
                cwd,
                user,
                deadline: self.timeout,
            };
            let exit = request.pass(client, id, signals).await?;
            exec::explain(exit, self.timeout, Some(limits.memory));
            exit
        };
        let code = exit.exit_code as u8;
        let downloading = async {
            for download in &self.download {
                let target = Path::new(&download.target);
                if let Err(error) = files.download(&download.source, target).await {
                    // The exit code of a failed command takes precedence over errors of downloads.
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

    /// Rejects options that only a local run supports.
    fn check_served(&self, client: &Client) -> Result<(), Error> {
        let only_here = [
            ("name", self.name.is_some()),
            ("mount", !self.mount.is_empty()),
            ("keep", self.keep),
            ("egress-allow", !self.egress_allow.is_empty()),
            ("ca-file", !self.ca_file.is_empty()),
        ];
        let Some((field, _)) = only_here.iter().find(|(_, is_set)| *is_set) else {
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

/// Creates the sandbox. If a signal arrives first, a sandbox that is created nevertheless is
/// deleted.
async fn create_unless_signalled(
    client: &Client,
    body: &Value,
    signals: &mut Signals,
) -> Result<Value, Error> {
    let making = create(client, body);
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

/// Deletes the sandbox; after a signal, with a short timeout.
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

/// Deletes the sandbox. It may have expired or been deleted already.
async fn delete(client: &Client, id: &str) -> Result<(), Error> {
    match client.send_buffered(&Request::delete(below(id, &[]))).await {
        Err(error) if error.code != Code::SandboxNotFound => Err(error),
        _ => Ok(()),
    }
}

/// Renews the timeout at an interval; ends when the sandbox is gone.
async fn renew(client: &Client, id: &str) -> Error {
    let request = Request::post(
        below(id, &["timeout"]),
        &json!({ "timeout": ORPHAN_TIMEOUT_SECS }),
    )
    .idempotent();
    loop {
        tokio::time::sleep(RENEW_INTERVAL).await;
        if let Err(error) = client.send_buffered(&request).await {
            return error;
        }
    }
}

/// Converts arguments to UTF-8, as JSON requires.
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
