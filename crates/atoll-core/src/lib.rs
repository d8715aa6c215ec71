//! The rules: who may do what with which sandbox, and for how long.
//!
//! `control` verify identity, quota and time, and writes rows first: a row says what should be, the worker's
//! record beside the files says what is, and [`Core::open`] joins them. `data` (commands and files) sees
//! only a [`SandboxAccess`]: somebody may touch this sandbox now, and it runs.
//!
//! One process serves a data directory, so the rows of living sandboxes are also kept in memory: a question
//! costs no query, and a change is written before it is seen.

mod access;
mod access_tokens;
mod clock;
mod connect;
mod context;
mod error;
mod events;
mod expiry;
mod history;
mod keys;
mod live_sandboxes;
mod metrics;
mod orgs;
mod port_links;
mod rate_limit;
mod reconcile;
mod sandboxes;
mod signed_urls;
mod stream_shutdown;
mod templates;
mod tickets;
mod timekeeping;
mod watchers;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_model::{Error, Org, SandboxId};
use atoll_store::Store;
use atoll_worker::LocalRuntime;
use tokio::sync::{Notify, watch};
use tracing::Instrument as _;

pub use access::SandboxAccess;
pub use access_tokens::{SandboxRef, TokenScope};
pub use atoll_store::SandboxRow;
pub use clock::unexplained_difference;
pub use connect::{ConnectOptions, PauseMode, PriorState};
pub use context::RequestContext;
pub use events::EventReader;
pub use history::SessionView;
pub use keys::{CreatedKey, KeyRequest, is_key, is_secret_hex, random_secret_hex};
pub use orgs::OrgRequest;
pub use port_links::{PortLink, is_port_link, port_link_expiry};
pub use sandboxes::{NewSandbox, SandboxChange, SandboxFilter, SandboxList, SandboxView};
pub use signed_urls::{SignedUrl, Signer, UrlAction};
pub use stream_shutdown::StreamEnd;
pub use templates::TemplateView;
pub use tickets::{CreatedTicket, is_ticket};
pub use watchers::WatchSpec;

use clock::Clock;
use live_sandboxes::LiveSandboxes;

/// The control plane of one machine.
#[derive(Debug, Clone)]
pub struct Core {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    runtime: LocalRuntime,
    sandboxes: LiveSandboxes,
    clock: Arc<Clock>,
    /// Tried again.
    pending_deletes: Mutex<reconcile::PendingDeletes>,
    /// Tried again, too.
    abandoned_creates: Mutex<HashMap<SandboxId, SandboxRow>>,
    /// Some sandbox's time may be up at another moment than before.
    expiry_changed: Notify,
    /// The server is about to end.
    shutting_down: watch::Sender<bool>,
    keys: keys::Cache,
    tickets: tickets::Tickets,
    signer: Signer,
    metrics: metrics::Metrics,
    rate: Option<rate_limit::RateLimits>,
    searches: rate_limit::SearchRateLimit,
    config: Config,
}

/// What the rules leave to the operator.
#[derive(Debug, Clone, Copy, Default)]
pub struct Config {
    /// How long a stopped sandbox is kept before it is deleted; `None` is for ever.
    pub stopped_retention: Option<Duration>,
    /// How many requests a second a key may send; `None` is as many as it likes.
    pub rate_limit: Option<NonZeroU32>,
    /// Sandboxes that have no row become sandboxes of the first org. Otherwise they are set aside.
    pub adopt_orphans: bool,
}

impl Core {
    /// Joins what should be with what is, and begins to watch the time.
    pub async fn open(
        store: Store,
        runtime: LocalRuntime,
        signer: Signer,
        config: Config,
    ) -> Result<Self, Error> {
        let recorded = store.clock().await.map_err(error::store)?;
        let clock = Arc::new(Clock::start(Box::new(clock::Host), recorded.as_ref()));
        let (sandboxes, pending_deletes) =
            reconcile::reconcile_all(&store, &runtime, &config, &clock).await?;
        // Before anything can be ended because its time is up. A failure is logged, and the hold begins all the same.
        let _ = timekeeping::check(&store, &sandboxes, &clock).await;
        let core = Self {
            inner: Arc::new(Inner {
                store,
                runtime,
                sandboxes,
                clock,
                pending_deletes: Mutex::new(pending_deletes),
                abandoned_creates: Mutex::default(),
                expiry_changed: Notify::new(),
                shutting_down: watch::Sender::new(false),
                keys: keys::Cache::default(),
                tickets: tickets::Tickets::default(),
                signer,
                metrics: metrics::Metrics::default(),
                rate: config.rate_limit.map(rate_limit::RateLimits::new),
                searches: rate_limit::SearchRateLimit::default(),
                config,
            }),
        };
        tokio::spawn(expiry::expiry_loop(Arc::downgrade(&core.inner)));
        tokio::spawn(reconcile::reconcile_loop(Arc::downgrade(&core.inner)));
        tokio::spawn(history::sync_loop(Arc::downgrade(&core.inner)));
        tokio::spawn(history::retention_loop(Arc::downgrade(&core.inner)));
        Ok(core)
    }

    /// The org of the first start, made if there is none.
    pub async fn first_org(&self) -> Result<Org, Error> {
        orgs::first(&self.inner.store, self.now()).await
    }

    /// What runs the sandboxes.
    pub fn runtime(&self) -> &LocalRuntime {
        &self.inner.runtime
    }

    /// Server time: microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.inner.clock.now()
    }

    /// The store answers.
    pub async fn is_ready(&self) -> Result<(), Error> {
        self.inner.store.ping().await.map_err(error::store)
    }

    /// Brings everything that was committed to the store so far to the disk.
    pub async fn sync(&self) -> Result<(), Error> {
        self.inner.store.sync().await.map_err(error::store)
    }

    /// Ends everything but the sandboxes.
    pub async fn close(self) -> Result<(), Error> {
        // For the next server. The one before is at most a minute old.
        let _ = self
            .inner
            .store
            .record_clock(&self.inner.clock.record())
            .await;
        self.inner.store.close().await;
        self.inner.runtime.clone().close().await
    }
}

/// Work that goes on whether or not its caller waits, and belongs to the same request in the log.
pub fn run_to_completion<T>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    atoll_worker::run_to_completion(work.in_current_span())
}
