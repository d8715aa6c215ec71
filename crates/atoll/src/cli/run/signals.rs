//! Forwarding of signals to the command.

use atoll_model::{Code, Error};
use atoll_worker::ExecHandle;
use tokio::signal::unix::{SignalKind, signal};

/// Signals that terminals and shells send to foreground processes.
pub(crate) struct Signals {
    /// Whether a signal was forwarded already.
    pub(crate) before: bool,
    streams: Vec<(i32, tokio::signal::unix::Signal)>,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Error> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::quit(),
        ];
        let streams = kinds
            .into_iter()
            .map(|kind| Ok((kind.as_raw_value(), signal(kind)?)))
            .collect::<std::io::Result<_>>();
        streams
            .map(|streams| Self {
                before: false,
                streams,
            })
            .map_err(|error| Error::new(Code::Internal, format!("watch signals: {error}")))
    }

    /// Runs a future until the next signal.
    pub(crate) async fn unless<T>(
        &mut self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            // A signal that arrived before is pending.
            biased;
            number = self.next() => Err(ended_by(number)),
            done = work => done,
        }
    }

    pub(crate) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Forwards the first signal; the second one kills the command.
    pub(super) async fn hand_on(&mut self, number: i32, control: &ExecHandle) -> Result<(), Error> {
        if std::mem::replace(&mut self.before, true) {
            control.kill()
        } else {
            control.signal(number).await
        }
    }
}

/// Exit code of a shell for a signal.
pub(crate) fn ended_by(number: i32) -> Error {
    let message = format!("ended by signal {number}");
    Error::new(Code::Conflict, message).detail("exitCode", (128 + number).to_string())
}
