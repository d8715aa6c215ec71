//! Event feed of an org: stored events after a sequence number, then new ones as they occur.

use atoll_model::{Error, Event, Scope};

use crate::{Core, RequestContext, error};

/// Maximum number of events per read.
const BATCH: u32 = 256;

/// Reader of an org's events.
#[derive(Debug)]
pub struct EventReader {
    core: Core,
    context: RequestContext,
    after: i64,
    changes: tokio::sync::watch::Receiver<()>,
}

impl EventReader {
    /// Waits for the next events and returns at least one.
    pub async fn next(&mut self) -> Result<Vec<Event>, Error> {
        loop {
            self.changes.mark_unchanged();
            let store = &self.core.inner.store;
            let found = store
                .events(&self.context.org.id, None, self.after, BATCH)
                .await;
            let found = found.map_err(error::store)?;
            if let Some(last) = found.last() {
                self.after = last.sequence;
                return Ok(found);
            }
            // Cannot fail: `self` keeps the store alive.
            let _ = self.changes.changed().await;
        }
    }
}

impl Core {
    /// Reads events after a sequence number. `None`: only new events.
    pub async fn subscribe_events(
        &self,
        context: &RequestContext,
        after: Option<i64>,
    ) -> Result<EventReader, Error> {
        context.require(Scope::Read)?;
        let store = &self.inner.store;
        let after = match after {
            Some(after) => after,
            None => store.last_event().await.map_err(error::store)?,
        };
        Ok(EventReader {
            core: self.clone(),
            context: context.clone(),
            after,
            changes: store.subscribe_changes(),
        })
    }

    /// Returns events of one sandbox after a sequence number, oldest first.
    pub async fn sandbox_events(
        &self,
        context: &RequestContext,
        name: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>, Error> {
        let row = self.sandbox(context, name).await?.row;
        let store = &self.inner.store;
        let events = store.events(&context.org.id, Some(&row.id), after, limit);
        events.await.map_err(error::store)
    }
}
