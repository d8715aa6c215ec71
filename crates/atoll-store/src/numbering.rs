//! Sequence numbers of events in PostgreSQL.
//!
//! Transactions of PostgreSQL become visible in another order than they took numbers of a sequence: a reader that saw
//! number 2 and continues after it would miss number 1, which is committed later. Events are therefore inserted without
//! a number. A separate transaction numbers all committed ones; the row lock of `event_numbers` admits one such
//! transaction at a time, so that numbers become visible in ascending order. Readers see numbered events only.
//!
//! A task of each store numbers after commits of its process, and once a second what another process left. The
//! transaction notifies the listeners of all processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_model::EventId;
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::Result;
use crate::database::postgres::within_limit;

const CHANNEL: &str = "atoll_events";
/// Interval of looking for events without a number, and for numbers of other processes, in case a notification was lost.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(300);
/// Events of one transaction.
const BATCH: i64 = 1000;

// The commit does not wait for the disk: a crash of the database server undoes at most numbers, which are then assigned
// again, higher than before. A reader can get such an event twice and misses none.
const LOCK: &str =
    "SELECT last, set_config('synchronous_commit', 'off', true) FROM event_numbers FOR UPDATE";
const NUMBER: &str = "UPDATE events SET number = $1 + next.position FROM \
     (SELECT seq, ROW_NUMBER() OVER (ORDER BY seq) AS position FROM events WHERE number IS NULL ORDER BY seq LIMIT $2) AS next \
     WHERE events.seq = next.seq";
const ADVANCE: &str = "UPDATE event_numbers SET last = last + $1";
const NOTIFY: &str = "SELECT pg_notify('atoll_events', $1)";
const STATE: &str =
    "SELECT last, EXISTS (SELECT 1 FROM events WHERE number IS NULL) FROM event_numbers";

/// Assigns numbers to events. Dropping the last clone ends its tasks.
#[derive(Debug)]
pub(crate) struct Numbering {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
}

#[derive(Debug)]
struct Shared {
    pool: PgPool,
    changes: Arc<watch::Sender<()>>,
    /// Number of commits with events in this process, and how many of them are numbered.
    committed: AtomicU64,
    numbered: AtomicU64,
    /// Held by the caller that numbers.
    turn: Mutex<()>,
    wake: Notify,
    /// Payload of this store's notifications, which it ignores.
    sender: String,
}

impl Numbering {
    pub(crate) fn start(pool: PgPool, listener: PgPool, changes: Arc<watch::Sender<()>>) -> Self {
        let shared = Arc::new(Shared {
            pool,
            changes,
            committed: AtomicU64::new(0),
            numbered: AtomicU64::new(0),
            turn: Mutex::new(()),
            wake: Notify::new(),
            sender: EventId::random().as_str().to_owned(),
        });
        let tasks = vec![
            tokio::spawn(number_in_background(Arc::clone(&shared))).abort_handle(),
            tokio::spawn(listen(Arc::clone(&shared), listener)).abort_handle(),
        ];
        Self { shared, tasks }
    }

    /// Records a commit with events.
    pub(crate) fn note(&self) {
        self.shared.committed.fetch_add(1, Ordering::SeqCst);
        self.shared.wake.notify_one();
    }

    /// Numbers all events that this process committed before the call, so that a caller reads its own writes.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        self.shared.catch_up().await
    }

    pub(crate) fn stop(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Drop for Numbering {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    async fn catch_up(&self) -> Result<()> {
        let wanted = self.committed.load(Ordering::SeqCst);
        if self.numbered.load(Ordering::SeqCst) >= wanted {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if self.numbered.load(Ordering::SeqCst) >= wanted {
            return Ok(());
        }
        let reached = self.committed.load(Ordering::SeqCst);
        self.number_all().await?;
        self.numbered.fetch_max(reached, Ordering::SeqCst);
        Ok(())
    }

    /// Numbers all events that are committed and have no number.
    async fn number_all(&self) -> Result<()> {
        loop {
            let mut transaction = within_limit(self.pool.begin()).await?;
            let last: (i64, String) =
                within_limit(sqlx::query_as(LOCK).fetch_one(&mut *transaction)).await?;
            // A new statement: it sees everything that was committed before the lock was taken.
            let query = sqlx::query(NUMBER).bind(last.0).bind(BATCH);
            let numbered = within_limit(query.execute(&mut *transaction)).await?;
            let count = numbered.rows_affected().cast_signed();
            if count > 0 {
                let query = sqlx::query(ADVANCE).bind(count);
                within_limit(query.execute(&mut *transaction)).await?;
                let query = sqlx::query(NOTIFY).bind(&self.sender);
                within_limit(query.execute(&mut *transaction)).await?;
            }
            within_limit(transaction.commit()).await?;
            if count > 0 {
                self.changes.send_replace(());
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Numbers events of processes that ended before they did, and detects numbers whose notification was lost.
    async fn check(&self, last_seen: &mut i64) -> Result<()> {
        let query = sqlx::query_as::<_, (i64, bool)>(STATE);
        let (last, has_unnumbered) = within_limit(query.fetch_one(&self.pool)).await?;
        if has_unnumbered {
            let _turn = self.turn.lock().await;
            self.number_all().await?;
        }
        if last != *last_seen {
            *last_seen = last;
            self.changes.send_replace(());
        }
        Ok(())
    }
}

async fn number_in_background(shared: Arc<Shared>) {
    let mut last_seen = 0;
    loop {
        let result = match timeout(CHECK_INTERVAL, shared.wake.notified()).await {
            Ok(()) => shared.catch_up().await,
            Err(_) => shared.check(&mut last_seen).await,
        };
        if result.is_err() {
            sleep(RECONNECT_INTERVAL).await;
            shared.wake.notify_one();
        }
    }
}

/// Passes notifications of other processes on. The database may be away: then it is tried again.
async fn listen(shared: Arc<Shared>, pool: PgPool) {
    loop {
        let _ = receive(&shared, &pool).await;
        sleep(RECONNECT_INTERVAL).await;
    }
}

async fn receive(shared: &Shared, pool: &PgPool) -> sqlx::Result<()> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    // Notifications while the connection was lost are lost too.
    shared.changes.send_replace(());
    loop {
        match listener.try_recv().await? {
            Some(notification) if notification.payload() == shared.sender => {}
            Some(_) | None => {
                shared.changes.send_replace(());
            }
        }
    }
}
