//! Start of a process, as a command or in a terminal, and the stream of its output.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::{SandboxAccess, SandboxRef};
use atoll_model::runtime::ExecHandle;
use atoll_model::{Code, Error, ExecSpec};
use axum::Extension;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;

use super::{basic_auth_user, events};
use crate::e2b::connect_rpc::{ConnectError, RequestStream};
use crate::serve::Connection;
use crate::websocket::clamp_size;

#[derive(Debug, Default, Deserialize)]
struct ProcessConfig {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pty {
    pub(super) size: Size,
}

#[derive(Debug, Deserialize)]
pub(super) struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

impl Size {
    pub(super) fn of_terminal(&self) -> atoll_model::TerminalSize {
        let number = |number| u16::try_from(number).unwrap_or(u16::MAX);
        clamp_size(number(self.cols), number(self.rows))
    }
}

#[derive(Debug, Deserialize)]
struct Start {
    process: ProcessConfig,
    pty: Option<Pty>,
    tag: Option<String>,
    /// Default: true, as older clients expect.
    stdin: Option<bool>,
}

impl Start {
    fn spec(&self, headers: &HeaderMap) -> ExecSpec {
        let ProcessConfig {
            cmd,
            args,
            envs,
            cwd,
        } = &self.process;
        let mut spec = ExecSpec::argv([cmd].into_iter().chain(args));
        for (name, value) in envs {
            spec = spec.variable(name, value);
        }
        spec.directory = cwd
            .clone()
            .filter(|cwd| !cwd.is_empty())
            .map(String::into_bytes);
        spec.user = basic_auth_user(headers);
        spec.tag.clone_from(&self.tag);
        spec.deadline = deadline(headers);
        if let Some(pty) = &self.pty {
            spec = spec.terminal(pty.size.of_terminal());
        } else if self.stdin != Some(false) {
            spec = spec.piped_stdin();
        }
        spec
    }
}

/// Deadline of the process: the client's timeout for the call.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let milliseconds = headers.get("connect-timeout-ms")?.to_str().ok()?;
    let milliseconds = milliseconds.parse().ok().filter(|time| *time > 0)?;
    Some(Duration::from_millis(milliseconds))
}

/// Converts an error to E2B's code and message.
fn to_e2b_error(error: Error, spec: &ExecSpec) -> ConnectError {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match error.code {
        Code::CwdNotFound => {
            let cwd = spec.directory.as_deref().map(text).unwrap_or_default();
            ConnectError::new("invalid_argument", format!("cwd '{cwd}' does not exist"))
        }
        Code::UnknownUser => {
            let user = spec.user.clone().unwrap_or_default();
            ConnectError::new("unauthenticated", format!("invalid username: '{user}'"))
        }
        _ => error.into(),
    }
}

pub(super) async fn start(
    Extension(sandbox): Extension<SandboxRef>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match start_process(&sandbox, &headers, body).await {
        Ok((access, exec)) => events::respond(access, connection, exec, 0, &headers).await,
        Err(error) => error.stream(),
    }
}

async fn start_process(
    sandbox: &SandboxRef,
    headers: &HeaderMap,
    body: Body,
) -> Result<(SandboxAccess, Box<dyn ExecHandle>), ConnectError> {
    let request: Start = RequestStream::new(body).only().await?;
    let spec = request.spec(headers);
    let access = sandbox.open().await?;
    let started = access.runtime().exec(access.id(), spec.clone()).await;
    let exec = started.map_err(|error| to_e2b_error(error, &spec))?;
    Ok((access, exec))
}
