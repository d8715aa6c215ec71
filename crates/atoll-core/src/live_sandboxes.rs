//! In-memory rows of all sandboxes that are not deleted, with their locks.
//!
//! A change is written to the store before it is visible here. The only exceptions are transient states (see
//! [`LiveSandbox::set_transient_state`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use atoll_model::{Code, Error, OrgId, SandboxId, SandboxState, StopReason, lock};
use atoll_store::{ChangeEvent, SandboxRow, Store};

use crate::clock::Clock;
use crate::data::watchers::Watchers;
use crate::error;
use crate::rate_limit::Bucket;

/// All sandboxes that are not deleted, indexed by id, creation time and alias.
#[derive(Debug)]
pub(crate) struct LiveSandboxes {
    clock: Arc<Clock>,
    all: Mutex<Live>,
    aliases: Arc<Aliases>,
}

#[derive(Debug, Default)]
struct Live {
    by_id: HashMap<SandboxId, Arc<LiveSandbox>>,
    by_age: BTreeMap<(i64, SandboxId), Arc<LiveSandbox>>,
}

/// Index from org and alias to the sandbox. The store, which is written first, keeps aliases unique, so the last
/// insert wins.
#[derive(Debug, Default)]
struct Aliases(Mutex<HashMap<(OrgId, String), SandboxId>>);

impl Aliases {
    /// Replaces the alias of a sandbox.
    fn change(&self, id: &SandboxId, org: &OrgId, from: Option<&str>, to: Option<&str>) {
        if from == to {
            return;
        }
        let key = |alias: &str| (org.clone(), alias.to_owned());
        let mut all = lock(&self.0);
        if let Some(from) = from.map(key)
            && all.get(&from) == Some(id)
        {
            all.remove(&from);
        }
        if let Some(to) = to.map(key) {
            all.insert(to, id.clone());
        }
    }

    fn get(&self, org: &OrgId, alias: &str) -> Option<SandboxId> {
        lock(&self.0).get(&(org.clone(), alias.to_owned())).cloned()
    }
}

/// A sandbox that is not deleted.
#[derive(Debug)]
pub(crate) struct LiveSandbox {
    row: Mutex<SandboxRow>,
    clock: Arc<Clock>,
    aliases: Arc<Aliases>,
    /// Held during a transition and while the row is written.
    pub(crate) transition_lock: Arc<tokio::sync::Mutex<()>>,
    /// Watchers that outlive requests. They do not count as activity.
    pub(crate) watchers: Arc<Watchers>,
    /// Rate limit of requests with an access token.
    pub(crate) bucket: Bucket,
    /// Access tokens by [`crate::TokenScope`], computed on first use.
    pub(crate) tokens: OnceLock<[String; 2]>,
}

/// A sandbox whose transition lock is locked.
#[derive(Debug)]
pub(crate) struct LockedSandbox {
    pub(crate) entry: Arc<LiveSandbox>,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

impl LiveSandbox {
    fn new(row: SandboxRow, clock: &Arc<Clock>, aliases: Arc<Aliases>) -> Arc<Self> {
        Arc::new(Self {
            row: Mutex::new(row),
            clock: Arc::clone(clock),
            aliases,
            transition_lock: Arc::default(),
            watchers: Arc::default(),
            bucket: Bucket::default(),
            tokens: OnceLock::new(),
        })
    }

    pub(crate) fn row(&self) -> SandboxRow {
        lock(&self.row).clone()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&SandboxRow) -> T) -> T {
        look(&lock(&self.row))
    }

    /// Changes the row, in the store first, with the event of the change.
    pub(crate) async fn update(
        &self,
        store: &Store,
        change: impl FnOnce(&mut SandboxRow),
    ) -> Result<SandboxRow, Error> {
        let _deadlines = self.clock.deadlines.read().await;
        let before = self.row();
        let mut row = before.clone();
        change(&mut row);
        let written = store.update_sandbox(&row, change_event(&before, &row), self.clock.now());
        written.await.map_err(error::store)?;
        lock(&self.row).clone_from(&row);
        let (from, to) = (before.alias.as_deref(), row.alias.as_deref());
        self.aliases.change(&row.id, &row.org, from, to);
        if !row.state.has_processes() {
            self.remove_watchers();
        }
        Ok(row)
    }

    /// Changes the row in memory only, after the store was changed.
    pub(crate) fn change(&self, change: impl FnOnce(&mut SandboxRow)) {
        change(&mut lock(&self.row));
    }

    /// Sets a state in memory only. It does not outlive a transition; after a crash the runtime's state applies.
    pub(crate) fn set_transient_state(&self, state: SandboxState, reason: Option<StopReason>) {
        let mut row = lock(&self.row);
        (row.state, row.reason) = (state, reason);
    }
}

/// The event for a change of a row. The deletion of a running sandbox is preceded by `stopping`, and that of a failed
/// create by `failed`.
pub(crate) fn change_event(before: &SandboxRow, after: &SandboxRow) -> ChangeEvent {
    use SandboxState::{Failed, Paused, Running, Stopping};
    if after.deleted_at.is_some() {
        let preceded_by = match (before.state, after.state) {
            (Running | Paused | Stopping, _) => Some(Stopping),
            (before, Failed) if before != Failed => Some(Failed),
            _ => None,
        };
        let kind = "deleted";
        return ChangeEvent { kind, preceded_by };
    }
    if before.state == after.state {
        return "changed".into();
    }
    after.state.name().into()
}

impl LiveSandboxes {
    pub(crate) fn new(clock: &Arc<Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            all: Mutex::default(),
            aliases: Arc::default(),
        }
    }

    pub(crate) fn add(&self, row: SandboxRow) -> Arc<LiveSandbox> {
        let entry = LiveSandbox::new(row, &self.clock, Arc::clone(&self.aliases));
        self.insert(&entry);
        entry
    }

    fn insert(&self, entry: &Arc<LiveSandbox>) {
        let row = entry.row();
        let mut all = lock(&self.all);
        all.by_age
            .insert((row.created_at, row.id.clone()), Arc::clone(entry));
        all.by_id.insert(row.id.clone(), Arc::clone(entry));
        drop(all);
        self.aliases
            .change(&row.id, &row.org, None, row.alias.as_deref());
    }

    /// Inserts a sandbox that is being created, with its transition lock locked.
    pub(crate) async fn insert_locked(&self, row: SandboxRow) -> LockedSandbox {
        let entry = LiveSandbox::new(row, &self.clock, Arc::clone(&self.aliases));
        let guard = Arc::clone(&entry.transition_lock).lock_owned().await;
        self.insert(&entry);
        LockedSandbox {
            entry,
            _guard: guard,
        }
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        let Some(entry) = lock(&self.all).by_id.remove(id) else {
            return;
        };
        let row = entry.row();
        lock(&self.all).by_age.remove(&(row.created_at, row.id));
        self.aliases
            .change(id, &row.org, row.alias.as_deref(), None);
    }

    /// Returns up to `limit` sandboxes, newest first.
    pub(crate) fn newest(&self, limit: usize) -> Vec<Arc<LiveSandbox>> {
        let all = lock(&self.all);
        all.by_age.values().rev().take(limit).cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<LiveSandbox>> {
        lock(&self.all).by_id.values().cloned().collect()
    }

    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<LiveSandbox>> {
        lock(&self.all).by_id.get(id).cloned()
    }

    /// Finds a sandbox of an org by id or alias. A sandbox of another org is not found.
    pub(crate) fn find(&self, org: &OrgId, name: &str) -> Result<Arc<LiveSandbox>, Error> {
        // No alias has the form of an id.
        let id = name.parse().ok().or_else(|| self.aliases.get(org, name));
        let found = id.and_then(|id| self.get(&id));
        let own = |entry: &Arc<LiveSandbox>| entry.read(|row| row.org == *org);
        found.filter(own).ok_or_else(not_found)
    }

    /// Acquires the transition lock, with a timeout.
    pub(crate) async fn lock_within(
        &self,
        entry: Arc<LiveSandbox>,
        timeout: Duration,
    ) -> Result<LockedSandbox, Error> {
        let state = entry.read(|row| row.state.name());
        let locked = tokio::time::timeout(timeout, self.lock(entry)).await;
        locked.unwrap_or_else(|_| {
            Err(Error::new(
                Code::Timeout,
                format!(
                    "the sandbox is {state} for more than {} s",
                    timeout.as_secs()
                ),
            )
            .remedy("try again; if it goes on, give the request_id to the operator of the server")
            .detail("state", state))
        })
    }

    /// Acquires the transition lock. Returns 404 if the sandbox was deleted meanwhile.
    pub(crate) async fn lock(&self, entry: Arc<LiveSandbox>) -> Result<LockedSandbox, Error> {
        let guard = Arc::clone(&entry.transition_lock).lock_owned().await;
        let id = entry.read(|row| row.id.clone());
        if self
            .get(&id)
            .is_none_or(|found| !Arc::ptr_eq(&found, &entry))
        {
            return Err(not_found());
        }
        Ok(LockedSandbox {
            entry,
            _guard: guard,
        })
    }
}

/// The error for a sandbox that does not exist, was deleted or belongs to another org: they are indistinguishable.
pub(crate) fn not_found() -> Error {
    Error::new(Code::SandboxNotFound, "there is no such sandbox")
        .remedy("GET /sandboxes lists yours")
}

#[cfg(test)]
pub(crate) mod tests {
    use atoll_model::{Lifetime, Limits, Network, NetworkPolicy, PortAccess, SessionId};

    use super::*;

    pub(crate) fn row(org: &OrgId, alias: &str) -> SandboxRow {
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
            policy: NetworkPolicy::default(),
            port_access: PortAccess::Private,
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

    pub(crate) fn new_sandboxes() -> LiveSandboxes {
        LiveSandboxes::new(&Arc::new(crate::clock::tests::manual().1))
    }

    /// An org with some sandboxes, and ten other orgs with as many.
    fn filled(count: i64) -> (LiveSandboxes, OrgId) {
        let (sandboxes, orgs) = (new_sandboxes(), [(); 11].map(|()| OrgId::random()));
        for number in 0..count {
            for org in &orgs {
                let mut row = row(org, &format!("web-{number}"));
                row.created_at = number;
                sandboxes.add(row);
            }
        }
        let [org, ..] = orgs;
        (sandboxes, org)
    }

    /// The shortest of many measurements, to exclude other load on the machine.
    fn shortest(mut work: impl FnMut()) -> Duration {
        let times = (0..50).map(|_| {
            let begin = std::time::Instant::now();
            for _ in 0..100 {
                work();
            }
            begin.elapsed()
        });
        times.min().unwrap_or_default()
    }

    #[test]
    fn lookups_do_not_depend_on_the_number_of_sandboxes() {
        let times = [50, 5_000].map(|count| {
            let (sandboxes, org) = filled(count / 10);
            let found = shortest(|| assert!(sandboxes.find(&org, "web-3").is_ok()));
            let unknown = shortest(|| assert!(sandboxes.find(&org, "no-such").is_err()));
            let newest = shortest(|| assert_eq!(sandboxes.newest(50).len(), 50));
            [found, unknown, newest]
        });
        // A linear search would take 100 times as long.
        for (few, many) in times[0].iter().zip(&times[1]) {
            assert!(*many < *few * 20, "{times:?}");
        }
    }

    #[test]
    fn alias_finds_its_current_sandbox() {
        let (sandboxes, org, other) = (new_sandboxes(), OrgId::random(), OrgId::random());
        let id = |entry: &LiveSandbox| entry.read(|row| row.id.clone());
        let found =
            |org: &OrgId, name: &str| sandboxes.find(org, name).ok().map(|entry| id(&entry));
        let (first, foreign) = (
            sandboxes.add(row(&org, "web")),
            sandboxes.add(row(&other, "web")),
        );
        assert_eq!(found(&org, "web"), Some(id(&first)));
        assert_eq!(found(&other, "web"), Some(id(&foreign)));
        let foreign_id = id(&foreign).to_string();
        assert_eq!(found(&org, &foreign_id), None);
        // The next sandbox with the alias may be inserted before the last one is removed.
        let second = sandboxes.add(row(&org, "web"));
        sandboxes.remove(&id(&first));
        assert_eq!(found(&org, "web"), Some(id(&second)));
        sandboxes.remove(&id(&second));
        assert_eq!(found(&org, "web"), None);
        assert_eq!(found(&other, "web"), Some(id(&foreign)));
        sandboxes.remove(&id(&foreign));
        assert!(lock(&sandboxes.aliases.0).is_empty() && lock(&sandboxes.all).by_age.is_empty());
    }

    #[test]
    fn newest_sorts_by_creation_time() {
        let (sandboxes, org) = (new_sandboxes(), OrgId::random());
        for number in [3, 1, 4, 2] {
            let mut row = row(&org, "web");
            row.created_at = number;
            sandboxes.add(row);
        }
        let newest = sandboxes.newest(2);
        let created: Vec<i64> = newest
            .iter()
            .map(|entry| entry.read(|row| row.created_at))
            .collect();
        assert_eq!(created, [4, 3]);
    }

    #[tokio::test]
    async fn lock_times_out_and_fails_after_removal() {
        let clock = Arc::new(crate::clock::tests::manual().1);
        let (sandboxes, org) = (LiveSandboxes::new(&clock), OrgId::random());
        let entry = sandboxes.add(row(&org, "web"));
        let id = entry.read(|row| row.id.clone());
        let locked = sandboxes.lock(Arc::clone(&entry)).await;
        let timeout = Duration::from_millis(10);
        let late = sandboxes.lock_within(Arc::clone(&entry), timeout).await;
        assert_eq!(late.err().map(|error| error.code), Some(Code::Timeout));
        sandboxes.remove(&id);
        drop(locked);
        let gone = sandboxes.lock_within(entry, timeout).await;
        let code = gone.err().map(|error| error.code);
        assert_eq!(code, Some(Code::SandboxNotFound));
    }
}
