//! Why something that has no end of its own is ended by us.

use std::time::Duration;

use atoll_model::{Code, Error};

use crate::{Core, RequestContext};

/// Why it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The key that it was begun with is not accepted any more.
    KeyInvalid,
    /// The server ends; the next one goes on.
    Shutdown,
}

impl StreamEnd {
    /// As it is told to who is let go.
    pub fn error(self) -> Error {
        match self {
            Self::KeyInvalid => Error::new(
                Code::InvalidApiKey,
                "the API key was revoked or has expired",
            ),
            Self::Shutdown => Error::new(Code::NoCapacity, "the server ends"),
        }
    }
}

impl Core {
    /// From now on everything without an end of its own is asked to end.
    pub fn begin_shutdown(&self) {
        self.inner.shutting_down.send_replace(true);
    }

    /// Waits until what a caller has begun must end.
    pub async fn stream_end(&self, context: &RequestContext) -> StreamEnd {
        let mut ending = self.inner.shutting_down.subscribe();
        let ending = ending.wait_for(|ending| *ending);
        tokio::select! {
            _ = ending => StreamEnd::Shutdown,
            () = self.key_invalidated(context) => StreamEnd::KeyInvalid,
        }
    }

    /// Until a caller's key is not accepted any more.
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
