//! List of connections without an authenticated request. When a listener has no permit left, the
//! oldest of them is closed, so that clients without a key cannot lock out clients with a key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::timeouts::ConnectionTimer;

/// Minimum time between two log lines about closed connections.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The unauthenticated connections of one listener.
#[derive(Debug, Clone, Default)]
pub(super) struct Unauthenticated(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    next: u64,
    /// Ordered by age.
    connections: BTreeMap<u64, ConnectionTimer>,
    /// Number closed since the last log line.
    closed: u64,
    logged: Option<Instant>,
}

impl Unauthenticated {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the connection that `timer` creates for its entry.
    pub(super) fn add(&self, timer: impl FnOnce(Entry) -> ConnectionTimer) -> ConnectionTimer {
        let mut list = self.list();
        let number = list.next;
        list.next += 1;
        let timer = timer(Entry {
            list: self.clone(),
            number,
        });
        list.connections.insert(number, timer.clone());
        timer
    }

    /// Closes the oldest closable connection; `false` if there is none.
    pub(super) fn close_oldest(&self) -> bool {
        let mut list = self.list();
        let oldest = list
            .connections
            .iter()
            .find(|(_, timer)| timer.is_closable());
        let Some((&number, _)) = oldest else {
            return false;
        };
        if let Some(timer) = list.connections.remove(&number) {
            timer.close();
        }
        list.closed += 1;
        if list.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            let closed = std::mem::take(&mut list.closed);
            list.logged = Some(Instant::now());
            tracing::warn!(
                closed,
                "connection limit reached: the oldest connections without an authenticated request are closed"
            );
        }
        true
    }
}

/// Registration of a connection in the list.
#[derive(Debug)]
pub(super) struct Entry {
    list: Unauthenticated,
    number: u64,
}

impl Entry {
    pub(super) fn remove(&self) {
        // Dropped after the lock: it may be the last reference.
        let _removed = self.list.list().connections.remove(&self.number);
    }
}
