//! The rows of living sandboxes, in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::{Code, Error, OrgId, SandboxId, SandboxState};
use atoll_store::{Happened, SandboxRow, Store};

use crate::error;
use crate::rate::Bucket;
use crate::watchers::Watchers;

/// All living sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    all: Mutex<HashMap<SandboxId, Arc<Entry>>>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Entry {
    row: Mutex<SandboxRow>,
    /// Held while it gets from one state to another, and while its row is written.
    pub(crate) gate: Arc<tokio::sync::Mutex<()>>,
    /// Held while its history is carried over.
    pub(crate) carrying: tokio::sync::Mutex<()>,
    /// It is being paused, which its row says when that is done.
    pausing: AtomicBool,
    /// When somebody last used it.
    used: AtomicI64,
    /// Uses under way.
    uses: AtomicUsize,
    /// Watches that are kept between requests, which is no use.
    pub(crate) watchers: Watchers,
    /// How many requests it was sent lately.
    pub(crate) bucket: Bucket,
}

/// One that is being paused as long as this lives.
#[derive(Debug)]
pub(crate) struct Pausing<'a>(&'a Entry);

impl Drop for Pausing<'_> {
    fn drop(&mut self) {
        self.0.pausing.store(false, Ordering::Release);
    }
}

/// One whose gate is held.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) entry: Arc<Entry>,
    _gate: tokio::sync::OwnedMutexGuard<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    pub(crate) fn new(row: SandboxRow) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicI64::new(row.started_at.unwrap_or(row.created_at)),
            row: Mutex::new(row),
            gate: Arc::default(),
            pausing: AtomicBool::new(false),
            carrying: tokio::sync::Mutex::default(),
            uses: AtomicUsize::new(0),
            watchers: Watchers::default(),
            bucket: Bucket::default(),
        })
    }

    pub(crate) fn row(&self) -> SandboxRow {
        lock(&self.row).clone()
    }

    pub(crate) fn with<T>(&self, look: impl FnOnce(&SandboxRow) -> T) -> T {
        look(&lock(&self.row))
    }

    /// Changes the row, in the store first, with what happened.
    pub(crate) async fn write(
        &self,
        store: &Store,
        change: impl FnOnce(&mut SandboxRow),
    ) -> Result<SandboxRow, Error> {
        let before = self.row();
        let mut row = before.clone();
        change(&mut row);
        let written = store.update_sandbox(&row, happened(&before, &row), crate::now());
        written.await.map_err(error::store)?;
        lock(&self.row).clone_from(&row);
        if !matches!(row.state, SandboxState::Running | SandboxState::Paused) {
            self.end_watchers();
        }
        Ok(row)
    }

    /// Shows it in a state that is not written down: it passes, and after a crash it is what the runtime finds.
    pub(crate) fn show(&self, state: SandboxState) {
        lock(&self.row).state = state;
    }

    /// Shows those who want to use it that it is being paused.
    pub(crate) fn begin_pause(&self) -> Pausing<'_> {
        self.pausing.store(true, Ordering::Release);
        Pausing(self)
    }

    /// Its state for whoever uses it: what is being paused is paused.
    pub(crate) fn state_in_use(&self) -> SandboxState {
        match self.with(|row| row.state) {
            SandboxState::Running if self.pausing.load(Ordering::Acquire) => SandboxState::Paused,
            state => state,
        }
    }

    pub(crate) fn begin_use(&self) {
        self.uses.fetch_add(1, Ordering::AcqRel);
        self.touch();
    }

    pub(crate) fn end_use(&self) {
        self.touch();
        self.uses.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn touch(&self) {
        self.touch_at(crate::now());
    }

    /// It was used at a time, if not later too.
    pub(crate) fn touch_at(&self, at: i64) {
        self.used.fetch_max(at, Ordering::AcqRel);
    }

    /// Since when nobody uses it; `None` while somebody does.
    pub(crate) fn idle_since(&self) -> Option<i64> {
        (self.uses.load(Ordering::Acquire) == 0).then(|| self.used.load(Ordering::Acquire))
    }
}

/// What a change is called. What ran and is deleted was being stopped, and what could not be made has failed first.
pub(crate) fn happened(before: &SandboxRow, after: &SandboxRow) -> Happened {
    use SandboxState::{Failed, Paused, Running, Stopping};
    if after.deleted_at.is_some() {
        let through = match (before.state, after.state) {
            (Running | Paused | Stopping, _) => Some(Stopping),
            (before, Failed) if before != Failed => Some(Failed),
            _ => None,
        };
        let kind = "deleted";
        return Happened { kind, through };
    }
    if before.state == after.state {
        return "changed".into();
    }
    after.state.name().into()
}

impl Ledger {
    pub(crate) fn add(&self, row: SandboxRow) -> Arc<Entry> {
        let entry = Entry::new(row);
        let id = entry.with(|row| row.id.clone());
        lock(&self.all).insert(id, Arc::clone(&entry));
        entry
    }

    /// One that is being made: whoever wants to change it waits until the gate is let go.
    pub(crate) async fn add_held(&self, row: SandboxRow) -> Held {
        let entry = Entry::new(row);
        let id = entry.with(|row| row.id.clone());
        let gate = Arc::clone(&entry.gate).lock_owned().await;
        lock(&self.all).insert(id, Arc::clone(&entry));
        Held { entry, _gate: gate }
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        lock(&self.all).remove(id);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        lock(&self.all).values().cloned().collect()
    }

    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        lock(&self.all).get(id).cloned()
    }

    /// An org's sandbox by id or alias. What belongs to another org is not there, whatever it is called.
    pub(crate) fn find(&self, org: &OrgId, name: &str) -> Result<Arc<Entry>, Error> {
        let all = lock(&self.all);
        let own = |entry: &Arc<Entry>| entry.with(|row| row.org == *org);
        let by_id = name.parse().ok().and_then(|id: SandboxId| all.get(&id));
        let found = by_id.filter(|entry| own(entry)).or_else(|| {
            let named = |row: &SandboxRow| row.org == *org && row.alias.as_deref() == Some(name);
            all.values().find(|entry| entry.with(named))
        });
        found.cloned().ok_or_else(unknown)
    }

    /// Waits until nobody else changes it, and not for ever.
    pub(crate) async fn hold_within(
        &self,
        entry: Arc<Entry>,
        most: Duration,
    ) -> Result<Held, Error> {
        let state = entry.with(|row| row.state.name());
        let held = tokio::time::timeout(most, self.hold(entry)).await;
        held.unwrap_or_else(|_| {
            Err(Error::new(
                Code::Timeout,
                format!("the sandbox is {state} for more than {} s", most.as_secs()),
            )
            .remedy("try again; if it goes on, look at the server's log")
            .detail("state", state))
        })
    }

    /// Waits until nobody else changes it. What was deleted meanwhile is not there.
    pub(crate) async fn hold(&self, entry: Arc<Entry>) -> Result<Held, Error> {
        let gate = Arc::clone(&entry.gate).lock_owned().await;
        let id = entry.with(|row| row.id.clone());
        if self
            .get(&id)
            .is_none_or(|found| !Arc::ptr_eq(&found, &entry))
        {
            return Err(unknown());
        }
        Ok(Held { entry, _gate: gate })
    }
}

/// The same words whether it never was, is deleted or is somebody else's.
pub(crate) fn unknown() -> Error {
    Error::new(Code::SandboxNotFound, "there is no such sandbox")
        .remedy("GET /sandboxes lists yours")
}

#[cfg(test)]
mod tests {
    use atoll_model::{Lifetime, Limits, Network, Policy, SessionId};

    use super::*;

    fn row(org: &OrgId, alias: &str) -> SandboxRow {
        SandboxRow {
            id: SandboxId::random(),
            session: SessionId::random(),
            org: org.clone(),
            alias: Some(alias.into()),
            template: "base".into(),
            state: SandboxState::Running,
            reason: None,
            error: None,
            metadata: std::collections::BTreeMap::default(),
            limits: Limits::default(),
            network: Network::None,
            policy: Policy::default(),
            public_ports: false,
            durable: false,
            lifetime: Lifetime::default(),
            created_at: 1,
            started_at: Some(1),
            end_at: None,
            time_left: None,
            stopped_at: None,
            deleted_at: None,
        }
    }

    #[tokio::test]
    async fn a_gate_is_waited_for_in_time_and_what_is_gone_then_is_not_there() {
        let (ledger, org) = (Ledger::default(), OrgId::random());
        let entry = ledger.add(row(&org, "web"));
        let id = entry.with(|row| row.id.clone());
        let held = ledger.hold(Arc::clone(&entry)).await;
        let most = Duration::from_millis(10);
        let late = ledger.hold_within(Arc::clone(&entry), most).await;
        assert_eq!(late.err().map(|error| error.code), Some(Code::Timeout));
        ledger.remove(&id);
        drop(held);
        let gone = ledger.hold_within(entry, most).await;
        let code = gone.err().map(|error| error.code);
        assert_eq!(code, Some(Code::SandboxNotFound));
    }
}
