//! Why something that has no end of its own is ended by us.

use std::time::Duration;

use atoll_model::{Code, Error};

use crate::{Context, Core};

/// Why it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The key that it was begun with is not accepted any more.
    Revoked,
    /// The server ends; the next one goes on.
    Ending,
}

impl Notice {
    /// As it is told to who is let go.
    pub fn error(self) -> Error {
        match self {
            Self::Revoked => Error::new(
                Code::InvalidApiKey,
                "the API key was revoked or has expired",
            ),
            Self::Ending => Error::new(Code::NoCapacity, "the server ends"),
        }
    }
}

impl Core {
    /// From now on everything without an end of its own is asked to end.
    pub fn announce_end(&self) {
        self.inner.ending.send_replace(true);
    }

    /// Waits until what a caller has begun must end.
    pub async fn notice(&self, context: &Context) -> Notice {
        let mut ending = self.inner.ending.subscribe();
        let ending = ending.wait_for(|ending| *ending);
        tokio::select! {
            _ = ending => Notice::Ending,
            () = self.until_refused(context) => Notice::Revoked,
        }
    }

    /// Until a caller's key is not accepted any more.
    async fn until_refused(&self, context: &Context) {
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
