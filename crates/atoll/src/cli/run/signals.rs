//! Signals that the command is sent, and what becomes of them.

use atoll_model::{Code, Error};
use atoll_worker::ExecHandle;
use tokio::signal::unix::{SignalKind, signal};

/// The signals a shell sends to what runs in the foreground.
pub(crate) struct Signals {
    /// One was passed on already.
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

    /// Does something that the next signal ends.
    pub(crate) async fn unless<T>(
        &mut self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            // One that came before is not forgotten.
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

    /// Passes the first signal on; a second one means business.
    pub(super) async fn hand_on(&mut self, number: i32, control: &ExecHandle) -> Result<(), Error> {
        if std::mem::replace(&mut self.before, true) {
            control.kill()
        } else {
            control.signal(number).await
        }
    }
}

/// A signal came: the exit code is what a shell says of it.
pub(crate) fn ended_by(number: i32) -> Error {
    let message = format!("ended by signal {number}");
    Error::new(Code::Conflict, message).detail("exitCode", (128 + number).to_string())
}
