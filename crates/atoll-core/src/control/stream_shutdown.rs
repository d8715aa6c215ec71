//! Ends open streams when their API key becomes invalid or the server shuts down.

use std::time::Duration;

use atoll_model::{Code, Error};

use crate::{Core, RequestContext};

/// Reason for which the server ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The API key of the stream was revoked or has expired.
    KeyInvalid,
    /// The server shuts down. Clients may reconnect to the next one.
    Shutdown,
}

impl StreamEnd {
    /// The error that the client gets.
    pub fn error(self) -> Error {
        match self {
            Self::KeyInvalid => Error::new(
                Code::InvalidApiKey,
                "the API key was revoked or has expired",
            ),
            Self::Shutdown => Error::new(Code::NoCapacity, "the server is shutting down"),
        }
    }
}

impl Core {
    /// Ends all open streams, and all that are opened later.
    pub fn begin_shutdown(&self) {
        self.inner.shutting_down.send_replace(true);
    }

    /// Waits until a stream of this caller must end.
    pub async fn stream_end(&self, context: &RequestContext) -> StreamEnd {
        let mut ending = self.inner.shutting_down.subscribe();
        let ending = ending.wait_for(|ending| *ending);
        tokio::select! {
            _ = ending => StreamEnd::Shutdown,
            () = self.key_invalidated(context) => StreamEnd::KeyInvalid,
        }
    }

    /// Waits until the caller's key is revoked or expires. Never returns for a caller without a key.
    async fn key_invalidated(&self, context: &RequestContext) {
        let Some(key) = &context.key else {
            return std::future::pending().await;
        };
        let expired = async {
            let Some(end) = context.expires_at else {
                return std::future::pending().await;
            };
            let left = u64::try_from(end - self.inner.clock.system()).unwrap_or(0);
            tokio::time::sleep(Duration::from_micros(left)).await;
        };
        tokio::select! {
            () = self.inner.keys.until_revoked(key) => {}
            () = expired => {}
        }
    }
}
