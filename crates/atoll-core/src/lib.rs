//! The rules: who may do what with which sandbox, and for how long.
//!
//! `control` knows identity, quota and time, and writes rows first: a row says what should be, the worker's
//! record beside the files says what is, and [`Core::open`] joins them. `data` (commands and files) sees
//! only a [`Use`]: somebody may touch this sandbox now, and it runs.
//!
//! One process serves a data directory, so the rows of living sandboxes are also kept in memory: a question
//! costs no query, and a change is written before it is seen.

mod context;
mod doors;
mod error;
mod events;
mod gate;
mod keys;
mod ledger;
mod lifetimes;
mod links;
mod orgs;
mod reconcile;
mod sandboxes;
mod tickets;
mod watchers;

use std::sync::Arc;

use atoll_model::{Error, Org};
use atoll_store::Store;
use atoll_worker::LocalRuntime;
use tokio::sync::Notify;

pub use atoll_store::{Again, Event};
pub use context::Context;
pub use doors::{Door, Doorstep};
pub use events::EventReader;
pub use gate::{Use, Watching};
pub use keys::{KeyRequest, MadeKey, random_digits};
pub use links::{Act, Link, Signer};
pub use orgs::OrgRequest;
pub use sandboxes::{NewSandbox, SandboxChange, SandboxView};
pub use tickets::MadeTicket;
pub use watchers::Watched;

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
    /// Some sandbox's time may be up at another moment than before.
    times: Notify,
    keys: keys::Cache,
    tickets: tickets::Tickets,
    signer: Signer,
}

impl Core {
    /// Joins what should be with what is, and begins to watch the time.
    pub async fn open(store: Store, runtime: LocalRuntime, signer: Signer) -> Result<Self, Error> {
        let ledger = reconcile::join(&store, &runtime).await?;
        let core = Self {
            inner: Arc::new(Inner {
                store,
                runtime,
                ledger,
                times: Notify::new(),
                keys: keys::Cache::default(),
                tickets: tickets::Tickets::default(),
                signer,
            }),
        };
        tokio::spawn(lifetimes::watch(Arc::downgrade(&core.inner)));
        tokio::spawn(reconcile::follow(Arc::downgrade(&core.inner)));
        tokio::spawn(events::forget(Arc::downgrade(&core.inner)));
        Ok(core)
    }

    /// The org of the first start, made if there is none.
    pub async fn first_org(&self) -> Result<Org, Error> {
        orgs::first(&self.inner.store).await
    }

    /// What runs the sandboxes.
    pub fn runtime(&self) -> &LocalRuntime {
        &self.inner.runtime
    }

    /// The store answers.
    pub async fn is_ready(&self) -> Result<(), Error> {
        self.inner.store.ping().await.map_err(error::store)
    }

    /// Ends everything but the sandboxes.
    pub async fn close(self) -> Result<(), Error> {
        self.inner.store.close().await;
        self.inner.runtime.clone().close().await
    }
}

/// Now: microseconds since 1970.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    })
}
