//! Control plane: authentication, permissions, quotas, transitions and expiry of sandboxes.
//!
//! A row in the store holds the desired state of a sandbox and is written first. The runtime's record beside the
//! sandbox's files holds the actual state. [`Core::open`] reconciles both.
//!
//! `control` manages sandboxes, orgs and keys. `data` authorizes calls for commands, files and ports with a
//! [`SandboxAccess`]; the calls themselves go from the server to the runtime and not through this crate. One process
//! serves a data directory, so the rows of all sandboxes that are not deleted are also kept in memory.

mod clock;
mod context;
mod control;
mod data;
mod error;
mod event_bus;
mod live_sandboxes;
mod metrics;
mod rate_limit;
mod run_to_completion;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_model::runtime::Runtime;
use atoll_model::{Error, EventBus, Org, SandboxId};
use atoll_store::Store;
use tokio::sync::{Notify, watch};
use tracing::Instrument as _;

pub use atoll_store::SandboxRow;
pub use clock::{Clock, unexplained_difference};
pub use context::RequestContext;
pub use control::connect::{ConnectOptions, PauseMode, PriorState};
pub use control::events::EventReader;
pub use control::history::{SessionView, StoreHistory};
pub use control::keys::{CreatedKey, KeyRequest, is_key, is_secret_hex, random_secret_hex};
pub use control::orgs::OrgRequest;
pub use control::sandboxes::{NewSandbox, SandboxChange, SandboxFilter, SandboxList, SandboxView};
pub use control::static_key::StaticKey;
pub use control::stream_shutdown::StreamEnd;
pub use control::templates::TemplateView;
pub use control::tickets::{CreatedTicket, is_ticket};
pub use data::access::{Access, SandboxAccess};
pub use data::access_tokens::{SandboxRef, TokenScope};
pub use data::port_links::{PortLink, is_port_link, port_link_expiry};
pub use data::signed_urls::{SignedUrl, Signer, UrlAction};
pub use data::watchers::WatchSpec;
pub use event_bus::InProcessBus;

use control::{expiry, history, keys, orgs, reconcile, tickets, timekeeping};
use live_sandboxes::LiveSandboxes;

/// The control plane of one machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Core {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    runtime: Arc<dyn Runtime>,
    events: Arc<dyn EventBus>,
    sandboxes: LiveSandboxes,
    clock: Arc<Clock>,
    /// Deletes that failed in the runtime. Retried every 5 s.
    pending_deletes: Mutex<HashSet<SandboxId>>,
    /// Creates that failed after their row was inserted; the row still has to be removed. Retried every 5 s.
    abandoned_creates: Mutex<HashMap<SandboxId, SandboxRow>>,
    /// Notified when the next expiry of a sandbox may have changed.
    expiry_changed: Notify,
    /// True once the server shuts down.
    shutting_down: watch::Sender<bool>,
    keys: keys::Cache,
    tickets: tickets::Tickets,
    signer: Signer,
    static_key: Option<StaticKey>,
    metrics: metrics::Metrics,
    rate: Option<rate_limit::RateLimits>,
    searches: rate_limit::SearchRateLimit,
    config: Config,
}

/// Settings of the operator.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Time after which a stopped sandbox is deleted. `None`: never.
    pub stopped_retention: Option<Duration>,
    /// Maximum number of requests per second and key. `None`: no limit.
    pub rate_limit: Option<NonZeroU32>,
    /// Whether sandboxes without a row are given to the first org. Otherwise they are moved to `orphaned/`.
    pub adopt_orphans: bool,
    /// One more API key, which has no row.
    pub static_key: Option<StaticKey>,
}

impl Core {
    /// Reconciles the store with the runtime and starts the background tasks.
    pub async fn open(
        store: Store,
        runtime: Arc<dyn Runtime>,
        events: Arc<dyn EventBus>,
        clock: Arc<Clock>,
        signer: Signer,
        config: Config,
    ) -> Result<Self, Error> {
        let (sandboxes, pending_deletes) =
            reconcile::reconcile_all(&store, &*runtime, &config, &clock).await?;
        // Before any sandbox can expire. A failure is logged, and deadlines are held nevertheless.
        let _ = timekeeping::check(&store, &sandboxes, &clock).await;
        let core = Self {
            inner: Arc::new(Inner {
                store,
                runtime,
                events,
                sandboxes,
                clock,
                pending_deletes: Mutex::new(pending_deletes),
                abandoned_creates: Mutex::default(),
                expiry_changed: Notify::new(),
                shutting_down: watch::Sender::new(false),
                keys: keys::Cache::default(),
                tickets: tickets::Tickets::default(),
                signer,
                static_key: config.static_key.clone(),
                metrics: metrics::Metrics::default(),
                rate: config.rate_limit.map(rate_limit::RateLimits::new),
                searches: rate_limit::SearchRateLimit::default(),
                config,
            }),
        };
        tokio::spawn(expiry::expiry_loop(Arc::downgrade(&core.inner)));
        tokio::spawn(reconcile::reconcile_loop(Arc::downgrade(&core.inner)));
        tokio::spawn(history::retention_loop(Arc::downgrade(&core.inner)));
        tokio::spawn(keys::revocation_loop(Arc::downgrade(&core.inner)));
        Ok(core)
    }

    /// The org of the operator. Created if there is none.
    pub async fn first_org(&self) -> Result<Org, Error> {
        orgs::first(&self.inner.store, self.now()).await
    }

    /// The runtime.
    pub fn runtime(&self) -> &dyn Runtime {
        &*self.inner.runtime
    }

    /// Server time: microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.inner.clock.now()
    }

    /// Checks that the store can be read and written.
    pub async fn is_ready(&self) -> Result<(), Error> {
        self.inner.store.ping().await.map_err(error::store)
    }

    /// Brings everything that was committed to the store so far to the disk.
    pub async fn sync(&self) -> Result<(), Error> {
        self.inner.store.sync().await.map_err(error::store)
    }

    /// Closes the store and the runtime. Persistent sandboxes keep running.
    pub async fn close(self) -> Result<(), Error> {
        // For the next server. Without it, the last record is at most a minute old.
        let _ = self
            .inner
            .store
            .record_clock(&self.inner.clock.record())
            .await;
        self.inner.store.close().await;
        self.inner.runtime.close().await
    }
}

/// Runs work to completion even if the caller is cancelled, with the request's tracing span.
pub fn run_to_completion<T>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    run_to_completion::run_to_completion(work.in_current_span())
}
