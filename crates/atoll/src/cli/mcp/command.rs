//! The tool that runs commands. It reads all that a command writes and keeps both ends of it; the host hears meanwhile what is new.

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
use super::tools::{About, Sandbox, Tool, ToolContext, ToolEffect, cancelled};

/// Seconds, if nothing is said.
const USUAL: f64 = 60.0;
/// How often a host hears of new output, and that a silent command still runs.
const TOLD: Duration = Duration::from_millis(200);
const SILENT: Duration = Duration::from_secs(10);
/// How much of it one notice has at most.
const NEWS: usize = 8 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    /// A line for /bin/sh; with `args`, a program.
    command: String,
    /// Arguments for the program, as they are.
    args: Option<Vec<String>>,
    /// The directory to run it in; the user's home if left out.
    cwd: Option<String>,
    /// Variables, by their names.
    env: Option<BTreeMap<String, String>>,
    /// After how many seconds it is ended; 60 if left out.
    timeout: Option<f64>,
}

impl Tool for RunCommand {
    const ABOUT: About = About {
        name: "run_command",
        title: "Run a command",
        description: "Run a command in the sandbox and get what it writes and how it ends. Each call is a new shell; files stay. \
            Of long output only the beginning and the end are told. To leave something running, end the line with & and send its \
            output to a file.",
        nature: ToolEffect::Runs,
        sandbox: Sandbox::Usual,
    };

    async fn work(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let timeout = self.timeout.unwrap_or(USUAL);
        if timeout <= 0.0 {
            let message = format!("timeout is {timeout}");
            return Err(Error::invalid(
                "timeout",
                message,
                "give more than 0 seconds",
            ));
        }
        // Once begun it is ours to end: until then nothing is cancelled.
        let asked = self.asked(timeout);
        let mut exec = Exec::start(place.client, &place.sandbox, &asked).await?;
        let remote = exec.remote();
        let news = PendingOutput::default();
        let teller = place.context.meta.get_progress_token();
        let teller = teller.map(|token| ProgressReporter {
            peer: &place.context.peer,
            token,
            begun: Instant::now(),
            timeout,
        });
        let told = async {
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
                // The output until then is kept; the next call is told of the sandbox by its own error.
                let end = if is_killed(&output.exit) {
                    find_end(place.client, &place.sandbox, Lost::Command).await
                } else {
                    None
                };
                Ok(output.told(timeout, end))
            }
            never = told => match never {},
            () = place.context.ct.cancelled() => {
                remote.signal(9).await?;
                Err(cancelled())
            }
        }
    }
}

impl RunCommand {
    /// As the API wants it.
    fn asked(self, timeout: f64) -> Value {
        let mut asked = json!({
            "cmd": self.command,
            "envs": self.env.unwrap_or_default(),
            "timeout": timeout,
            "background": true,
        });
        if let Some(args) = self.args {
            asked["args"] = json!(args);
        }
        if let Some(cwd) = self.cwd {
            asked["cwd"] = json!(cwd);
        }
        asked
    }
}

/// What a command wrote, and how it ended.
#[derive(Debug, Default)]
struct Output {
    stdout: HeadAndTail,
    stderr: HeadAndTail,
    /// So much was written faster than it could be read.
    lost: u64,
    exit: Exit,
}

/// Reads a command to its end.
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
    /// `end` is why its sandbox ended while it ran.
    fn told(&self, timeout: f64, end: Option<Error>) -> ToolOutput {
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

/// How it ended, if that is worth a word.
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

/// What the host has not heard yet; the beginning of much is left out.
#[derive(Debug, Default)]
struct PendingOutput(Mutex<Vec<u8>>);

impl PendingOutput {
    fn push(&self, bytes: &[u8]) {
        let mut news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        news.extend_from_slice(bytes);
        let over = news.len().saturating_sub(NEWS);
        news.drain(..over);
    }

    /// All that is whole: the rest of a letter may still come.
    fn take(&self) -> Vec<u8> {
        let mut news = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = whole(&news).len();
        let rest = news.split_off(end);
        std::mem::replace(&mut *news, rest)
    }
}

/// Tells a host that wants to know how a command goes on.
struct ProgressReporter<'a> {
    peer: &'a Peer<RoleServer>,
    token: ProgressToken,
    begun: Instant,
    timeout: f64,
}

impl ProgressReporter<'_> {
    /// Again and again.
    async fn tell(&self, news: &PendingOutput) -> Infallible {
        let mut last = Instant::now();
        loop {
            sleep(TOLD).await;
            let new = news.take();
            if !new.is_empty() || last.elapsed() >= SILENT {
                self.say(&new).await;
                last = Instant::now();
            }
        }
    }

    /// What was not told yet.
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
        // A host that does not hear it hears the end.
        let _ = self.peer.notify_progress(notice).await;
    }
}
