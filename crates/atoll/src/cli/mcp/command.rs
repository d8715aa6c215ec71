//! The tool that runs commands. It reads the whole output of a command and keeps its beginning and
//! end; progress notifications carry new output to the host meanwhile.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_client::{Exec, ExecEvent, Exit};
use atoll_model::Error;
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::schemars::{self, JsonSchema};
use rmcp::service::Peer;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::exec::{Lost, find_end, is_killed};
use super::output::{HeadAndTail, ToolOutput, whole};
use super::tools::{Sandbox, Tool, ToolContext, ToolEffect, ToolInfo, cancelled};

/// Default timeout in seconds.
const USUAL: f64 = 60.0;
/// Interval between progress notifications, with or without new output.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
const SILENT: Duration = Duration::from_secs(10);
/// Maximum output in one notification.
const NEWS: usize = 8 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    /// Command line for /bin/sh; with `args`, the program to run.
    command: String,
    /// Arguments of the program, passed without a shell.
    args: Option<Vec<String>>,
    /// Working directory; default: the user's home.
    cwd: Option<String>,
    /// Environment variables.
    env: Option<BTreeMap<String, String>>,
    /// Timeout in seconds after which the command is killed; default: 60.
    timeout: Option<f64>,
}

impl Tool for RunCommand {
    const ABOUT: ToolInfo = ToolInfo {
        name: "run_command",
        title: "Run a command",
        description: "Run a command in the sandbox and get what it writes and how it ends. Each call is a new shell; files stay. \
            Of long output only the beginning and the end are returned. To leave something running, end the line with & and send its \
            output to a file.",
        nature: ToolEffect::Runs,
        sandbox: Sandbox::Usual,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let timeout = self.timeout.unwrap_or(USUAL);
        if timeout <= 0.0 {
            let message = format!("timeout is {timeout}");
            return Err(Error::invalid(
                "timeout",
                message,
                "give more than 0 seconds",
            ));
        }
        // A started command must be killed by us, so the start is not cancelled.
        let body = self.body(timeout);
        let mut exec = Exec::start(place.client, &place.sandbox, &body).await?;
        let remote = exec.remote();
        let news = PendingOutput::default();
        let teller = place.context.meta.get_progress_token();
        let teller = teller.map(|token| ProgressReporter {
            peer: &place.context.peer,
            token,
            begun: Instant::now(),
            timeout,
        });
        let notified = async {
            match &teller {
                Some(teller) => teller.tell(&news).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            done = output(&mut exec, &news) => {
                if let Some(teller) = &teller {
                    teller.rest(&news).await;
                }
                let output = done?;
                // Return the output so far; the next call reports the error of the sandbox.
                let end = if is_killed(&output.exit) {
                    find_end(place.client, &place.sandbox, Lost::Command).await
                } else {
                    None
                };
                Ok(output.to_output(timeout, end))
            }
            never = notified => match never {},
            () = place.context.ct.cancelled() => {
                remote.signal(9).await?;
                Err(cancelled())
            }
        }
    }
}

impl RunCommand {
    /// The body of the request.
    fn body(self, timeout: f64) -> Value {
        let mut body = json!({
            "cmd": self.command,
            "envs": self.env.unwrap_or_default(),
            "timeout": timeout,
            "background": true,
        });
        if let Some(args) = self.args {
            body["args"] = json!(args);
        }
        if let Some(cwd) = self.cwd {
            body["cwd"] = json!(cwd);
        }
        body
    }
}

/// Output and result of a command.
#[derive(Debug, Default)]
struct Output {
    stdout: HeadAndTail,
    stderr: HeadAndTail,
    /// Bytes that were lost because they were written faster than they were read.
    lost: u64,
    exit: Exit,
}

/// Reads the output of a command until it ends.
async fn output(exec: &mut Exec<'_>, news: &PendingOutput) -> Result<Output, Error> {
    let mut output = Output::default();
    loop {
        let (stream, bytes) = match exec.next().await? {
            ExecEvent::Stdout(bytes) => (&mut output.stdout, bytes),
            ExecEvent::Stderr(bytes) => (&mut output.stderr, bytes),
            ExecEvent::Gap(bytes) => {
                output.lost += bytes;
                continue;
            }
            ExecEvent::Exit(exit) => return Ok(Output { exit, ..output }),
        };
        stream.push(&bytes);
        news.push(&bytes);
    }
}

impl Output {
    /// `end` is the reason for which its sandbox ended while it ran.
    fn to_output(&self, timeout: f64, end: Option<Error>) -> ToolOutput {
        let (stdout, stderr) = (self.stdout.text(), self.stderr.text());
        let mut parts = Vec::new();
        if !stdout.is_empty() {
            parts.push(stdout.trim_end_matches('\n').to_owned());
        }
        if !stderr.is_empty() {
            parts.push(format!("[stderr]\n{}", stderr.trim_end_matches('\n')));
        }
        if self.lost > 0 {
            parts.push(format!("[{} bytes of its output were lost]", self.lost));
        }
        parts.extend(match end {
            Some(end) => Some(format!("[killed: {}]", end.message)),
            None => ending(self.exit, timeout),
        });
        if parts.is_empty() {
            parts.push("[no output]".into());
        }
        ToolOutput::new(parts.join("\n"))
    }
}

/// Describes the result unless it is exit code 0.
fn ending(exit: Exit, timeout: f64) -> Option<String> {
    if exit.timed_out {
        return Some(format!(
            "[ended after {timeout} s, with all that it started: `timeout` gives it longer]"
        ));
    }
    if exit.oom_killed {
        return Some("[killed: the sandbox ran out of memory]".into());
    }
    match (exit.signal, exit.exit_code) {
        (Some(signal), _) => Some(format!("[killed by signal {signal}]")),
        (None, 0) => None,
        (None, code) => Some(format!("[exit code {code}]")),
    }
}

/// Output that was not sent to the host yet. If it is too long, its beginning is dropped.
#[derive(Debug, Default)]
struct PendingOutput(Mutex<Vec<u8>>);

impl PendingOutput {
    fn push(&self, bytes: &[u8]) {
        let mut news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        news.extend_from_slice(bytes);
        let over = news.len().saturating_sub(NEWS);
        news.drain(..over);
    }

    /// Takes all complete characters; the rest of a UTF-8 sequence may still arrive.
    fn take(&self) -> Vec<u8> {
        let mut news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = whole(&news).len();
        let rest = news.split_off(end);
        std::mem::replace(&mut *news, rest)
    }
}

/// Sends progress notifications if the host requested them.
struct ProgressReporter<'a> {
    peer: &'a Peer<RoleServer>,
    token: ProgressToken,
    begun: Instant,
    timeout: f64,
}

impl ProgressReporter<'_> {
    /// Sends notifications at an interval until dropped.
    async fn tell(&self, news: &PendingOutput) -> Infallible {
        let mut last = Instant::now();
        loop {
            sleep(PROGRESS_INTERVAL).await;
            let new = news.take();
            if !new.is_empty() || last.elapsed() >= SILENT {
                self.say(&new).await;
                last = Instant::now();
            }
        }
    }

    /// Sends the pending output.
    async fn rest(&self, news: &PendingOutput) {
        let new = news.take();
        if !new.is_empty() {
            self.say(&new).await;
        }
    }

    async fn say(&self, new: &[u8]) {
        let passed = self.begun.elapsed().as_secs_f64();
        let mut notice =
            ProgressNotificationParam::new(self.token.clone(), passed).with_total(self.timeout);
        if !new.is_empty() {
            notice = notice.with_message(String::from_utf8_lossy(new));
        }
        // A lost notification does no harm: the result contains the output.
        let _ = self.peer.notify_progress(notice).await;
    }
}
