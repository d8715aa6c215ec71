//! Commands in a sandbox. Retries neither start a command twice, nor lose or repeat its output or
//! input.

use std::time::Duration;

use atoll_model::{Code, Error, RequestId};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::error::{RequestError, RetryPolicy};
use crate::socket::{Frame, Socket};
use crate::{Client, Request, path, query};

/// Maximum number of input bytes per request.
const PART: usize = 256 << 10;
/// First and longest delay before input is sent again to a command that does not accept it now.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// Signals that may be sent twice: SIGKILL, and SIGPIPE, which every further write raises too.
const IDEMPOTENT_SIGNALS: [i32; 2] = [9, 13];

/// A command, running or finished.
#[derive(Debug)]
pub struct Exec<'a> {
    client: &'a Client,
    path: String,
    /// Id of the command.
    pub id: String,
    position: u64,
    socket: Option<Socket>,
    retry: RetryPolicy,
}

/// Result of a command.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// Exit code.
    pub exit_code: i32,
    /// Signal that killed the command, if any.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Whether the command was killed because the sandbox ran out of memory.
    #[serde(default)]
    pub oom_killed: bool,
    /// Whether the command was killed at its deadline.
    #[serde(default)]
    pub timed_out: bool,
}

/// Event of a command's output stream.
#[derive(Debug)]
pub enum ExecEvent {
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// Number of bytes that are no longer stored.
    Gap(u64),
    /// The command has ended.
    Exit(Exit),
}

impl<'a> Exec<'a> {
    /// Starts a command. Retries use the same idempotency key, so that it is started once.
    pub async fn start(client: &'a Client, sandbox: &str, body: &Value) -> Result<Self, Error> {
        let commands = path(&["sandboxes", sandbox, "commands"]);
        let key = RequestId::random();
        let begin = Request::post(&commands, body).header("idempotency-key", key.as_str());
        let begun = client.send_json(&begin.idempotent()).await?;
        Self::find(
            client,
            sandbox,
            begun["execID"].as_str().unwrap_or_default(),
        )
    }

    /// Refers to a command that exists.
    pub fn find(client: &'a Client, sandbox: &str, id: &str) -> Result<Self, Error> {
        if id.is_empty() {
            return Err(Error::new(Code::ExecNotFound, "a command has an id"));
        }
        Ok(Self {
            client,
            path: path(&["sandboxes", sandbox, "commands", id]),
            id: id.to_owned(),
            position: 0,
            socket: None,
            retry: RetryPolicy::new(true),
        })
    }

    /// Next event, beginning with the first byte of output; reconnects if the connection breaks.
    pub async fn next(&mut self) -> Result<ExecEvent, Error> {
        loop {
            let Some(socket) = &mut self.socket else {
                let after = self.position.to_string();
                let output = query(&format!("{}/output", self.path), &[("after", &after)]);
                match self.client.socket(&output).await {
                    Ok(socket) => self.socket = Some(socket),
                    Err(failure) => self.retry.after(self.client, failure).await?,
                }
                continue;
            };
            match socket.next().await {
                Ok(Frame::Bytes(frame)) => {
                    self.retry.reset();
                    if let Some(said) = self.frame(&frame)? {
                        return Ok(said);
                    }
                }
                Ok(Frame::Text(text)) => {
                    let gap: Value = serde_json::from_str(&text).unwrap_or_default();
                    let to = gap["to"].as_u64().unwrap_or(self.position);
                    let missing = to.saturating_sub(self.position);
                    self.position = to;
                    return Ok(ExecEvent::Gap(missing));
                }
                Ok(Frame::Over) => return ended(self.client, &self.path).await,
                // The result of the command says more than the close code.
                Err(RequestError::Rejected(error)) => {
                    self.client.send_json(&Request::get(&self.path)).await?;
                    return Err(error);
                }
                Err(failure) => {
                    self.socket = None;
                    self.retry.after(self.client, failure).await?;
                }
            }
        }
    }

    fn frame(&mut self, frame: &Bytes) -> Result<Option<ExecEvent>, Error> {
        let Some(kind) = frame.first() else {
            return Ok(None);
        };
        let bytes = frame.slice(1..);
        if matches!(kind, 1 | 2) {
            self.position += bytes.len() as u64;
        }
        Ok(match kind {
            1 => Some(ExecEvent::Stdout(bytes)),
            2 => Some(ExecEvent::Stderr(bytes)),
            3 => Some(ExecEvent::Exit(
                serde_json::from_slice(&bytes).map_err(|error| unexpected_response(&error))?,
            )),
            _ => None,
        })
    }

    /// Handle for signals and input.
    pub fn remote(&self) -> ExecInput<'a> {
        ExecInput {
            client: self.client,
            path: self.path.clone(),
            taken: 0,
        }
    }
}

/// Requests the result of a command.
async fn ended(client: &Client, path: &str) -> Result<ExecEvent, Error> {
    let about = client.send_json(&Request::get(path)).await?;
    if about["exitCode"].is_null() {
        let message = "the command was lost with its sandbox";
        return Err(
            Error::new(Code::SandboxFailed, message).remedy("`atoll get` says what became of it")
        );
    }
    let exit = serde_json::from_value(about).map_err(|error| unexpected_response(&error))?;
    Ok(ExecEvent::Exit(exit))
}

/// Input side of a command.
#[derive(Debug)]
pub struct ExecInput<'a> {
    client: &'a Client,
    path: String,
    taken: u64,
}

impl ExecInput<'_> {
    /// Sends a signal; 9 kills all processes that the command started. Other signals are not
    /// idempotent, so they are not sent again if the response was lost.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        let path = format!("{}/signal", self.path);
        let mut request = Request::post(path, &json!({ "signal": signal }));
        if IDEMPOTENT_SIGNALS.contains(&signal) {
            request = request.idempotent();
        }
        self.client.send_buffered(&request).await.map(|_| ())
    }

    /// Writes all of the input; returns false if the command accepts no more.
    pub async fn write(&mut self, bytes: &Bytes) -> Result<bool, Error> {
        let end = self.taken + bytes.len() as u64;
        let begin = self.taken;
        let mut pause = PAUSES.0;
        while self.taken < end {
            let done = (self.taken - begin) as usize;
            let part = bytes.slice(done..bytes.len().min(done + PART));
            let offset = self.taken.to_string();
            let path = query(&format!("{}/stdin", self.path), &[("offset", &offset)]);
            let request = Request::post_bytes(path, part).idempotent();
            let taken = match self.client.send_json(&request).await {
                Ok(answer) => answer["taken"].as_u64().unwrap_or(self.taken),
                Err(error) if gone(&error) => return Ok(false),
                Err(error) => return Err(error),
            };
            if taken > self.taken {
                (self.taken, pause) = (taken.min(end), PAUSES.0);
                continue;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        Ok(true)
    }

    /// Closes the command's input.
    pub async fn close(&self) -> Result<(), Error> {
        let path = format!("{}/stdin/close", self.path);
        match self
            .client
            .send_buffered(&Request::post(path, &json!({})).idempotent())
            .await
        {
            Err(error) if !gone(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

fn gone(error: &Error) -> bool {
    matches!(error.code, Code::StdinClosed | Code::ExecNotFound)
}

fn unexpected_response(error: &serde_json::Error) -> Error {
    Error::new(Code::Internal, format!("the server's word is odd: {error}"))
}
