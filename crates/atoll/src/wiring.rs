//! The implementations that a server consists of. A mode is a choice among them and nothing else.

use std::sync::Arc;

use atoll_core::{Clock, Config, Core, InProcessBus, Signer, StoreHistory};
use atoll_model::{Error, EventBus};
use atoll_store::Store;
use atoll_worker::instance::DataLock;
use atoll_worker::{Config as RuntimeConfig, ForegroundGuard, LocalRuntime};

/// Control plane and worker in one process. Background work of the runtime begins when the guard is
/// dropped.
pub(crate) async fn combined(
    store: Store,
    runtime: RuntimeConfig,
    lock: DataLock,
    signer: Signer,
    config: Config,
) -> Result<(Core, ForegroundGuard), Error> {
    let events: Arc<dyn EventBus> = Arc::new(InProcessBus::default());
    let clock = Clock::open(&store).await?;
    let runtime = RuntimeConfig {
        history: Some(Arc::new(StoreHistory(store.clone()))),
        events: Some(Arc::clone(&events)),
        clock: Some(clock.clone()),
        ..runtime
    };
    let runtime = LocalRuntime::open_locked(runtime, lock).await?;
    let opening = runtime.defer_background_work();
    let core = Core::open(store, Arc::new(runtime), events, clock, signer, config).await?;
    Ok((core, opening))
}
