//! The rules: who may do what with which sandbox, and for how long.
//!
//! `control` knows identity, quota and time, and writes rows first: a row says what should be, the worker's
//! record beside the files says what is, and [`Core::open`] joins them. `data` (commands and files) sees
//! only a [`Use`]: somebody may touch this sandbox now, and it runs.
//!
//! One process serves a data directory, so the rows of living sandboxes are also kept in memory: a question
//! costs no query, and a change is written before it is seen.

mod clock;
mod connect;
mod context;
mod doors;
mod error;
mod events;
mod gate;
mod history;
mod keys;
mod ledger;
mod lifetimes;
mod links;
mod meters;
mod notice;
mod orgs;
mod port_links;
mod rate;
mod reconcile;
mod sandboxes;
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

pub use atoll_store::SandboxRow;
pub use clock::unexplained_difference;
pub use connect::{Before, Connect, Sleep};
pub use context::Context;
pub use doors::{Door, Doorstep};
pub use events::EventReader;
pub use gate::Use;
pub use history::SessionView;
pub use keys::{KeyRequest, MadeKey, is_digits, is_key, random_digits};
pub use links::{Act, Link, Signer};
pub use notice::Notice;
pub use orgs::OrgRequest;
pub use port_links::{PortLink, is_port_link, port_link_expiry};
pub use sandboxes::{NewSandbox, SandboxChange, SandboxFilter, SandboxList, SandboxView};
pub use templates::TemplateView;
pub use tickets::{MadeTicket, is_ticket};
pub use watchers::Watched;

use clock::Clock;
use ledger::Ledger;

/// The control plane of one machine.
#[derive(Debug, Clone)]
pub struct Core {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    runtime: LocalRuntime,
    ledger: Ledger,
    clock: Arc<Clock>,
    /// Tried again.
    leaving: Mutex<reconcile::Leaving>,
    /// Tried again, too.
    unmade: Mutex<HashMap<SandboxId, SandboxRow>>,
    /// Some sandbox's time may be up at another moment than before.
    times: Notify,
    /// The server is about to end.
    ending: watch::Sender<bool>,
    keys: keys::Cache,
    tickets: tickets::Tickets,
    signer: Signer,
    meters: meters::Meters,
    rate: Option<rate::Limit>,
    searches: rate::SearchLimit,
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
        let (ledger, leaving) = reconcile::join(&store, &runtime, &config, &clock).await?;
        // Before anything can be ended because its time is up. A failure is logged, and the hold begins all the same.
        let _ = timekeeping::check(&store, &ledger, &clock).await;
        let core = Self {
            inner: Arc::new(Inner {
                store,
                runtime,
                ledger,
                clock,
                leaving: Mutex::new(leaving),
                unmade: Mutex::default(),
                times: Notify::new(),
                ending: watch::Sender::new(false),
                keys: keys::Cache::default(),
                tickets: tickets::Tickets::default(),
                signer,
                meters: meters::Meters::default(),
                rate: config.rate_limit.map(rate::Limit::new),
                searches: rate::SearchLimit::default(),
                config,
            }),
        };
        tokio::spawn(lifetimes::watch(Arc::downgrade(&core.inner)));
        tokio::spawn(reconcile::follow(Arc::downgrade(&core.inner)));
        tokio::spawn(history::carry_all(Arc::downgrade(&core.inner)));
        tokio::spawn(history::forget(Arc::downgrade(&core.inner)));
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
pub fn outlast<T>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    atoll_worker::run_to_completion(work.in_current_span())
}
