//! Output of a process as a stream of events: `start`, `data`, `keepalive`, `end`.

use std::time::Duration;

use atoll_core::SandboxAccess;
use atoll_model::runtime::{ExecHandle, OutputStream};
use atoll_model::{Error, ExecInfo, ExecStatus, OutputChunk, Stream};
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::e2b::connect_rpc::{self, ConnectError, Envelope};
use crate::serve::Connection;

/// Default interval of `keepalive` events.
const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);

/// Signal that ends the processes of a sandbox.
const SIGKILL: i32 = 9;

/// Interval of `keepalive` events that the client requests.
pub(in crate::e2b) fn keepalive(headers: &HeaderMap) -> Duration {
    let interval = headers.get("keepalive-ping-interval");
    let interval = interval.and_then(|interval| interval.to_str().ok()?.parse().ok());
    interval
        .filter(|seconds| *seconds > 0)
        .map_or(DEFAULT_KEEPALIVE, Duration::from_secs)
}

/// Progress of the stream.
enum Phase {
    Start,
    Running,
    /// Envelope to send before the end.
    Ending(Bytes),
    Ended,
}

struct State {
    /// Keeps the sandbox active while a client is connected.
    access: SandboxAccess,
    connection: Connection,
    exec: Box<dyn ExecHandle>,
    info: ExecInfo,
    reader: Box<dyn OutputStream>,
    phase: Phase,
    keepalive: Duration,
}

/// Streams output from a position on. The process continues if the client disconnects.
pub(super) async fn respond(
    access: SandboxAccess,
    connection: Connection,
    exec: Box<dyn ExecHandle>,
    after: u64,
    headers: &HeaderMap,
) -> Response {
    let opened = async { Ok::<_, Error>((exec.output(after).await?, exec.info().await?)) };
    let (reader, info) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return ConnectError::from(error).stream(),
    };
    let state = State {
        reader,
        info,
        access,
        connection,
        exec,
        phase: Phase::Start,
        keepalive: keepalive(headers),
    };
    connect_rpc::stream(futures_util::stream::unfold(state, |mut state| async {
        let envelope = state.next().await?;
        Some((envelope, state))
    }))
}

fn event(event: &Value) -> Bytes {
    connect_rpc::message(&json!({ "event": event }))
}

impl State {
    async fn next(&mut self) -> Option<Envelope> {
        Some(match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Start => Ok(event(&json!({ "start": { "pid": self.info.pid } }))),
            Phase::Running => self.next_event().await,
            Phase::Ending(last) => {
                self.phase = Phase::Ended;
                Ok(last)
            }
            Phase::Ended => return None,
        })
    }

    async fn next_event(&mut self) -> Envelope {
        let next = tokio::time::timeout(self.keepalive, self.reader.next()).await;
        self.access.record_activity();
        Ok(match next {
            Err(_) => event(&json!({ "keepalive": {} })),
            Ok(Ok(Some(OutputChunk::Data { stream, bytes, .. }))) => self.data(stream, &bytes),
            // The process continues, but the stream fails: the client must not take the output as
            // complete.
            Ok(Ok(Some(OutputChunk::Gap { from, to }))) => {
                let lost = to - from;
                let message =
                    format!("{lost} bytes of output were lost: the client reads too slowly");
                self.fail(&ConnectError::new("data_loss", message))
            }
            Ok(Ok(Some(OutputChunk::Exit(status)))) => return self.end(status).await,
            Ok(Ok(None)) => {
                let info = self.exec.info().await;
                let status = info.map(|info| info.status.unwrap_or_default());
                return self.end(status.unwrap_or_default()).await;
            }
            Ok(Err(error)) => self.fail(&ConnectError::from(error)),
        })
    }

    fn fail(&mut self, error: &ConnectError) -> Bytes {
        self.phase = Phase::Ended;
        error.envelope()
    }

    fn data(&self, stream: Stream, bytes: &[u8]) -> Bytes {
        let on_terminal = self.info.spec.terminal.is_some();
        let name = match stream {
            _ if on_terminal => "pty",
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        event(&json!({ "data": { name: STANDARD.encode(bytes) } }))
    }

    async fn end(&mut self, status: ExecStatus) -> Envelope {
        if status.timed_out {
            let message = "context deadline exceeded";
            return Ok(self.fail(&ConnectError::new("deadline_exceeded", message)));
        }
        // Killed together with its sandbox.
        if status.signal == Some(SIGKILL) && self.access.has_ended().await {
            self.phase = Phase::Ended;
            return connect_rpc::end_with(&self.access, &self.connection).await;
        }
        self.phase = Phase::Ending(connect_rpc::end_of_stream());
        Ok(event(&json!({ "end": exit_event(status) })))
    }
}

/// Exit status in the form of Go's `os/exec`.
fn exit_event(status: ExecStatus) -> Value {
    match (status.signal, status.code) {
        (Some(signal), _) => {
            let words = format!("signal: {}", signal_name(signal));
            json!({ "exitCode": -1, "exited": false, "status": words, "error": words })
        }
        (None, code) => {
            let code = code.unwrap_or(0);
            let words = format!("exit status {code}");
            let mut end = json!({ "exitCode": code, "exited": true, "status": words });
            if code != 0 {
                end["error"] = words.into();
            }
            end
        }
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
