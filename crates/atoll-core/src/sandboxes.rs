//! Sandboxes: made, looked at, changed and taken away, each within its org's limits.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::{
    Code, Error, Lifetime, Limits, Network, Org, Policy, SandboxId, SandboxSpec, SandboxState,
    Scope, SessionId, Timings, Transition,
};
use atoll_store::{Again, Claim, Page, SandboxRow};

use crate::ledger::{Entry, Held};
use crate::lifetimes::kept_until;
use crate::{Context, Core, Inner, error, history, now, spawn};

/// What a sandbox is to be.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// What the runtime has to know.
    pub spec: SandboxSpec,
    /// What else it is called.
    pub alias: Option<String>,
    /// What its owner writes on it.
    pub metadata: BTreeMap<String, String>,
    /// When its time is up.
    pub lifetime: Lifetime,
    /// What it serves on its ports is for everybody.
    pub public_ports: bool,
    /// By which this can be said again.
    pub again: Option<Again>,
}

/// What is to be different. What is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct SandboxChange {
    /// What else it is called; inside, `None` is nothing.
    pub alias: Option<Option<String>>,
    /// What its owner writes on it.
    pub metadata: Option<BTreeMap<String, String>>,
    /// When its time is up, but for the lifetime itself.
    pub lifetime: Option<Lifetime>,
    /// Its ceilings.
    pub limits: Option<Limits>,
}

/// Which sandboxes are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that are there.
    Living,
    /// Those that are deleted too, as history.
    Ever,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Slice<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next one begins, if there is more.
    pub next: Option<(i64, String)>,
}

impl<T> Slice<T> {
    /// Of what was found when one more than fits was looked for.
    pub(crate) fn new(mut items: Vec<T>, page: &Page, place: impl Fn(&T) -> (i64, String)) -> Self {
        let more = items.len() > page.limit as usize;
        items.truncate(page.limit as usize);
        let next = items.last().filter(|_| more).map(place);
        Self { items, next }
    }

    /// Of everything there is, in whatever order: newest first.
    pub fn of_all(all: Vec<T>, page: &Page, place: impl Fn(&T) -> (i64, String)) -> Self {
        let before = |place: &(i64, String)| page.before.as_ref().is_none_or(|end| place < end);
        let all = all.into_iter().map(|item| (place(&item), item));
        let mut left: Vec<_> = all.filter(|(place, _)| before(place)).collect();
        left.sort_by(|(one, _), (two, _)| two.cmp(one));
        left.truncate(page.limit as usize + 1);
        let items = left.into_iter().map(|(_, item)| item).collect();
        Self::new(items, page, place)
    }
}

/// A sandbox as its owner sees it.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// What should be.
    pub row: SandboxRow,
    /// How long the stages of making it took; known to its creator only.
    pub timings: Option<Timings>,
}

impl From<SandboxRow> for SandboxView {
    fn from(row: SandboxRow) -> Self {
        Self { row, timings: None }
    }
}

pub(crate) const MICROSECONDS: i64 = 1_000_000;

/// Who waits for the create of somebody else looks at least so often what became of it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// When a sandbox that begins to run now must end.
pub(crate) fn end_of(lifetime: &Lifetime) -> Option<i64> {
    let seconds = lifetime.timeout?;
    Some(now() + i64::from(seconds) * MICROSECONDS)
}

/// How long a sandbox lives whose own time is none, in seconds, when it runs again.
const A_WHILE: u32 = 300;

/// When a life that begins again ends. With no time at all it would be over before anybody could use it.
pub(crate) fn end_anew(lifetime: &Lifetime) -> Option<i64> {
    let seconds = lifetime.timeout?;
    let seconds = if seconds == 0 { A_WHILE } else { seconds };
    Some(now() + i64::from(seconds) * MICROSECONDS)
}

/// Refuses an alias that could be an id, or is no host name.
fn check_alias(alias: &str) -> Result<(), Error> {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = (1..=63).contains(&alias.len())
        && alias.bytes().all(|byte| letters(byte) || byte == b'-')
        && alias.bytes().next().is_some_and(letters)
        && alias.parse::<SandboxId>().is_err();
    if fits {
        return Ok(());
    }
    Err(Error::invalid(
        "alias",
        format!("{alias:?} cannot be an alias"),
        "use at most 63 of a-z, 0-9 and -, beginning with a letter or digit, not of the form of an id",
    ))
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Error> {
    let size: usize = metadata
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if metadata.len() <= 64 && size <= 16 << 10 {
        return Ok(());
    }
    Err(Error::invalid(
        "metadata",
        "metadata has more than 64 entries or 16 KiB",
        "keep what is larger in a file of the sandbox",
    ))
}

/// Refuses a lifetime that the org does not allow.
pub(crate) fn check_timeout(org: &Org, timeout: Option<u32>) -> Result<(), Error> {
    let Some(most) = org.max_timeout else {
        return Ok(());
    };
    if timeout.is_some_and(|seconds| seconds <= most) {
        return Ok(());
    }
    Err(Error::invalid(
        "timeout",
        match timeout {
            Some(seconds) => format!("a timeout of {seconds} s is more than your org's {most} s"),
            None => format!("your org's sandboxes live for at most {most} s: 0, for ever, is more"),
        },
        format!("ask for at most {most}, or have the org's maxTimeout raised"),
    )
    .detail("max", most.to_string()))
}

/// Whether what is about to happen to a sandbox is still right, given its row before.
pub(crate) type Still = Box<dyn Fn(&SandboxRow, &Entry) -> bool + Send>;

pub(crate) fn always() -> Still {
    Box::new(|_, _| true)
}

/// Shows what runs as stopping, if it is still to be ended: who wants to use it from now on is refused, and who began
/// before is seen.
fn shown_stopping(entry: &Entry, before: &SandboxRow, still: &Still) -> bool {
    use SandboxState::{Paused, Running, Stopping};
    if !still(before, entry) {
        return false;
    }
    if !matches!(before.state, Running | Paused | Stopping) {
        return true;
    }
    entry.show(Stopping);
    if still(before, entry) {
        return true;
    }
    entry.show(before.state);
    false
}

/// How long a start waits for a stop under way.
const STARTS: Duration = Duration::from_secs(30);

impl Core {
    /// Makes a sandbox; a command works when this returns. Whether the caller waits makes no difference.
    pub async fn create(&self, context: &Context, asked: NewSandbox) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        if let Some(alias) = &asked.alias {
            check_alias(alias)?;
        }
        check_metadata(&asked.metadata)?;
        check_timeout(&context.org, asked.lifetime.timeout)?;
        let (core, org) = (self.clone(), context.org.clone());
        let work = spawn(async move {
            if let Some(again) = asked.again.clone() {
                return core.make_once(org, asked, again).await;
            }
            core.make(org, asked).await
        });
        work.await.map_err(|failure| {
            tracing::error!(%failure, "a create failed");
            Error::new(Code::Internal, "the create failed")
        })?
    }

    /// Makes a sandbox unless it was made when the same was said before.
    async fn make_once(
        &self,
        org: Org,
        asked: NewSandbox,
        again: Again,
    ) -> Result<SandboxView, Error> {
        let mut news = self.inner.store.news();
        loop {
            news.mark_unchanged();
            let before = self.inner.store.said_before(&org.id, &again.key).await;
            let Some((fingerprint, row)) = before.map_err(error::store)? else {
                match self.make(org.clone(), asked.clone()).await {
                    // Somebody says the same just now.
                    Err(error) if error.code == Code::IdempotencyMismatch => continue,
                    made => return made,
                }
            };
            if fingerprint != again.fingerprint {
                return Err(error::store(atoll_store::Error::Said));
            }
            if row.state != SandboxState::Creating {
                return Ok(row.into());
            }
            if self.inner.unmade().contains_key(&row.id) {
                self.inner.unmake(&row).await?;
                continue;
            }
            // Its maker is at work in this very process, and what becomes of it is news, if that can be written down.
            let _ = tokio::time::timeout(LOOK_AGAIN, news.changed()).await;
        }
    }

    async fn make(&self, org: Org, asked: NewSandbox) -> Result<SandboxView, Error> {
        let (begin, template) = (Instant::now(), asked.spec.template.clone());
        let made = self.make_uncounted(org, asked).await;
        let meters = &self.inner.meters;
        meters.created(&template, &made, begin.elapsed());
        made
    }

    async fn make_uncounted(&self, org: Org, asked: NewSandbox) -> Result<SandboxView, Error> {
        let held: Arc<Mutex<Option<Held>>> = Arc::default();
        let announce = {
            let (core, held) = (self.clone(), Arc::clone(&held));
            let lifetime = asked.lifetime;
            let asked = asked.clone();
            let (limits, network) = (asked.spec.limits, asked.spec.network);
            let begin = Instant::now();
            let policy = asked.spec.policy.clone();
            let template = asked.spec.template.clone();
            Box::new(
                move |id: SandboxId| -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
                    Box::pin(async move {
                        core.inner.meters.placed(begin.elapsed());
                        let row = SandboxRow {
                            id,
                            session: SessionId::random(),
                            org: org.id,
                            alias: asked.alias,
                            template,
                            state: SandboxState::Creating,
                            reason: None,
                            error: None,
                            metadata: asked.metadata,
                            limits,
                            network,
                            policy,
                            public_ports: asked.public_ports,
                            lifetime,
                            created_at: now(),
                            started_at: None,
                            end_at: None,
                            time_left: None,
                            stopped_at: None,
                            deleted_at: None,
                        };
                        let store = &core.inner.store;
                        let made = store.add_sandbox(&row, org.max_sandboxes, asked.again.as_ref());
                        let made = made.await;
                        if made.map_err(error::store)? == Claim::Full {
                            return Err(full(org.max_sandboxes));
                        }
                        let made = core.inner.ledger.add_held(row).await;
                        *held.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
                        Ok(())
                    })
                },
            )
        };
        let made = self
            .inner
            .runtime
            .create_announced(asked.spec, announce)
            .await;
        // Until its row says what became of it, nobody else changes it.
        let held = held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let entry = held.as_ref().map(|held| &held.entry);
        match (made, entry) {
            (Ok(info), Some(entry)) => {
                let written = entry.write(&self.inner.store, |row| {
                    row.state = info.state;
                    row.started_at = Some(now());
                    row.end_at = end_of(&row.lifetime);
                });
                let row = match written.await {
                    Ok(row) => row,
                    Err(error) => {
                        // Nobody is told of it: it must not run on, and its place and its key are free again.
                        self.inner.ledger.remove(&info.id);
                        let _ = self.inner.runtime.delete(&info.id).await;
                        let row = entry.row();
                        self.inner.unmade().insert(row.id.clone(), row.clone());
                        let _ = self.inner.unmake(&row).await;
                        return Err(error);
                    }
                };
                entry.touch();
                self.inner.times.notify_one();
                Ok(SandboxView {
                    row,
                    timings: Some(info.timings),
                })
            }
            (Ok(_), None) => Err(Error::new(Code::Internal, "the sandbox was not announced")),
            (Err(error), None) => Err(error),
            (Err(error), Some(entry)) => {
                let text = error.message.clone();
                // Nobody knows its id: the row is history at once, and its place in the org is free.
                let written = entry.write(&self.inner.store, |row| {
                    row.state = SandboxState::Failed;
                    row.error = Some(text);
                    row.deleted_at = Some(now());
                });
                let written = written.await;
                let id = entry.with(|row| row.id.clone());
                self.inner.ledger.remove(&id);
                written?;
                let forgotten = self.inner.store.forget_said(&id).await;
                forgotten.map_err(error::store)?;
                Err(error)
            }
        }
    }

    /// A sandbox of the caller's.
    pub fn sandbox(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        Ok(entry.row().into())
    }

    /// Every sandbox of the caller's that is not deleted, in no order.
    pub fn living(&self, context: &Context) -> Result<Vec<SandboxView>, Error> {
        context.require(Scope::Read)?;
        let all = self.inner.ledger.all().into_iter();
        let own = |row: &SandboxRow| (row.org == context.org.id).then(|| row.clone());
        let own = all.filter_map(|entry| entry.with(own));
        Ok(own.map(SandboxView::from).collect())
    }

    /// The caller's sandboxes, newest first: those that are there, or all there ever were; perhaps only those in a
    /// state.
    pub async fn sandboxes(
        &self,
        context: &Context,
        which: Which,
        state: Option<SandboxState>,
        page: &Page,
    ) -> Result<Slice<SandboxView>, Error> {
        context.require(Scope::Read)?;
        let place = |view: &SandboxView| (view.row.created_at, view.row.id.to_string());
        if which == Which::Living {
            // As they are shown one by one: also in states that pass before they are written down.
            let mut all = self.living(context)?;
            all.retain(|view| state.is_none_or(|state| view.row.state == state));
            return Ok(Slice::of_all(all, page, place));
        }
        let (store, more) = (&self.inner.store, page.one_more());
        let rows = store.sandboxes(&context.org.id, true, state, &more).await;
        let rows = rows.map_err(error::store)?;
        let rows = rows.into_iter().map(SandboxView::from).collect();
        Ok(Slice::new(rows, page, place))
    }

    /// Deletes a sandbox with its files. The first of several at once does it, the others find nothing.
    pub async fn delete(&self, context: &Context, name: &str) -> Result<(), Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.delete_entry(entry).await
    }

    pub(crate) async fn delete_entry(&self, entry: Arc<Entry>) -> Result<(), Error> {
        self.delete_if(entry, always()).await
    }

    /// Deletes it if that is still right when nobody else changes it any more.
    pub(crate) async fn delete_if(&self, entry: Arc<Entry>, still: Still) -> Result<(), Error> {
        let core = self.clone();
        let work = spawn(async move {
            let held = core.inner.ledger.hold(entry).await?;
            let entry = &held.entry;
            let before = entry.row();
            if !shown_stopping(entry, &before, &still) {
                return Ok(());
            }
            // What a row says is deleted is, now or at the next start.
            let written = entry.write(&core.inner.store, |row| {
                // Until now it only stood still.
                if before.state == SandboxState::Paused {
                    row.stopped_at = None;
                }
                row.state = SandboxState::Stopped;
                row.stopped_at.get_or_insert_with(now);
                row.deleted_at = Some(now());
                row.end_at = None;
            });
            if let Err(error) = written.await {
                entry.show(before.state);
                return Err(error);
            }
            core.inner.ledger.remove(&before.id);
            core.inner.bury(&before.id, before.session).await
        });
        joined(work.await)
    }

    /// Ends its processes; its files stay.
    pub async fn stop(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.stop_if(entry, always()).await
    }

    /// Stops it if that is still right when nobody else changes it any more.
    pub(crate) async fn stop_if(
        &self,
        entry: Arc<Entry>,
        still: Still,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        let work = spawn(async move {
            let held = core.inner.ledger.hold(entry).await?;
            core.stop_held(&held, still).await
        });
        joined(work.await)
    }

    /// The same for somebody who holds it.
    pub(crate) async fn stop_held(&self, held: &Held, still: Still) -> Result<SandboxView, Error> {
        let (entry, store) = (&held.entry, &self.inner.store);
        let before = entry.row();
        if before.state.next(Transition::Stop)? == SandboxState::Stopped
            || !shown_stopping(entry, &before, &still)
        {
            return Ok(before.into());
        }
        // After a crash the runtime says whether it came so far.
        let row = entry.row();
        let told = store.update_sandbox(&row, row.state.name(), now());
        let stopped = match told.await.map_err(error::store) {
            Ok(()) => self.inner.runtime.stop(&before.id).await,
            Err(error) => Err(error),
        };
        let info = match stopped {
            Ok(info) => info,
            Err(error) => {
                // As it was, also if that cannot be written.
                let back = entry.write(store, |row| row.state = before.state).await;
                if back.is_err() {
                    entry.show(before.state);
                }
                return Err(error);
            }
        };
        let written = entry.write(store, |row| {
            row.state = info.state;
            row.reason = info.reason;
            let at = now();
            row.stopped_at = Some(at);
            row.end_at = kept_until(&self.inner.config, at);
            row.time_left = None;
        });
        let written = written.await.map(SandboxView::from);
        if written.is_err() {
            // What has ended is found, and written then.
            entry.show(before.state);
        }
        written
    }

    /// Makes a stopped sandbox run again, with its files. One that runs already is fine as it is.
    pub async fn start(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.start_entry(entry).await
    }

    pub(crate) async fn start_entry(&self, entry: Arc<Entry>) -> Result<SandboxView, Error> {
        let core = self.clone();
        let work = spawn(async move {
            // A stop under way is waited for.
            let held = core.inner.ledger.hold_within(entry, STARTS).await?;
            core.start_held(&held).await
        });
        joined(work.await)
    }

    /// The same for somebody who holds it.
    pub(crate) async fn start_held(&self, held: &Held) -> Result<SandboxView, Error> {
        let entry = &held.entry;
        let row = entry.row();
        if row.state.next(Transition::Start)? == SandboxState::Running {
            return Ok(row.into());
        }
        if row.state == SandboxState::Stopped {
            let org = self.inner.store.org(&row.org).await.map_err(error::store)?;
            let most = org.and_then(|org| org.max_sandboxes);
            let claim = self.inner.store.claim_again(&row.id, most).await;
            if claim.map_err(error::store)? == Claim::Full {
                return Err(full(most));
            }
        }
        match self.inner.runtime.start(&row.id).await {
            Ok(info) => {
                let written = entry.write(&self.inner.store, |row| {
                    row.state = info.state;
                    row.reason = None;
                    row.started_at = Some(now());
                    row.stopped_at = None;
                    row.end_at = end_anew(&row.lifetime);
                });
                let row = match written.await {
                    Ok(row) => row,
                    Err(error) => {
                        // Nobody is told that it runs. As it was.
                        let _ = self.inner.runtime.stop(&row.id).await;
                        let _ = entry.write(&self.inner.store, |_| {}).await;
                        return Err(error);
                    }
                };
                entry.touch();
                self.inner.times.notify_one();
                Ok(row.into())
            }
            Err(error) => {
                // As it was.
                entry.write(&self.inner.store, |_| {}).await?;
                Err(error)
            }
        }
    }

    /// Ends its processes and starts it again.
    pub async fn restart(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        self.stop(context, name).await?;
        self.start(context, name).await
    }

    /// Deletes every sandbox of every org: all that can be. The first failure, if there was one.
    pub async fn delete_all(&self) -> Result<(), Error> {
        let mut failed = None;
        for entry in self.inner.ledger.all() {
            let id = entry.with(|row| row.id.clone());
            match self.delete_entry(entry).await {
                // Somebody else was quicker.
                Err(error) if error.code != Code::SandboxNotFound => {
                    tracing::error!(sandbox = %id, %error, "it cannot be deleted");
                    failed.get_or_insert(error);
                }
                _ => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Lets all its processes stand still.
    pub async fn pause(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.pause_if(entry, always()).await
    }

    /// Pauses it if that is still right when nobody else changes it any more.
    pub(crate) async fn pause_if(
        &self,
        entry: Arc<Entry>,
        still: Still,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        let work = spawn(async move {
            let held = core.inner.ledger.hold(entry).await?;
            let entry = &held.entry;
            let row = entry.row();
            row.state.next(Transition::Pause)?;
            if !still(&row, entry) {
                return Ok(row.into());
            }
            // Who wants to use it from now on lets it go on when this is done, if that is allowed.
            let _pausing = entry.begin_pause();
            let info = core.inner.runtime.pause(&row.id).await?;
            let written = entry.write(&core.inner.store, |row| {
                if row.state != info.state {
                    row.stopped_at = Some(now());
                }
                row.state = info.state;
                if let Some(end) = row.end_at.take() {
                    row.time_left = Some((end - now()).max(0));
                }
            });
            let written = written.await;
            if written.is_err() && row.state == SandboxState::Running {
                // Whoever is told that it could not be paused finds it running.
                core.inner.runtime.resume(&row.id).await?;
            }
            written.map(SandboxView::from)
        });
        joined(work.await)
    }

    /// Lets them go on, for as long as was left or as is said; inside, `None` is for ever.
    pub async fn resume(
        &self,
        context: &Context,
        name: &str,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        if let Some(timeout) = timeout {
            check_timeout(&context.org, timeout)?;
        }
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.resume_entry(&entry, timeout).await
    }

    pub(crate) async fn resume_entry(
        &self,
        entry: &Arc<Entry>,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        let (core, entry) = (self.clone(), Arc::clone(entry));
        let work = spawn(async move {
            let held = core.inner.ledger.hold(entry).await?;
            core.resume_held(&held, timeout).await
        });
        joined(work.await)
    }

    /// The same for somebody who holds it.
    pub(crate) async fn resume_held(
        &self,
        held: &Held,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        let entry = &held.entry;
        let row = entry.row();
        row.state.next(Transition::Resume)?;
        if row.state == SandboxState::Running && timeout.is_none() {
            return Ok(row.into());
        }
        let info = self.inner.runtime.resume(&row.id).await?;
        let written = entry.write(&self.inner.store, |row| {
            row.state = info.state;
            row.stopped_at = None;
            let left = row.time_left.take();
            let asked = timeout.map(|time| time.map(|seconds| i64::from(seconds) * MICROSECONDS));
            row.end_at = match (asked, left) {
                // It was paused because its time was up.
                (None, Some(0)) => end_anew(&row.lifetime),
                (asked, left) => asked.unwrap_or(left).map(|left| now() + left),
            };
        });
        let row = written.await?;
        entry.touch();
        self.inner.times.notify_one();
        Ok(row.into())
    }

    /// Sets how long it lives from now; `None` is for ever.
    pub async fn set_timeout(
        &self,
        context: &Context,
        name: &str,
        timeout: Option<u32>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, timeout)?;
        let held = self.held(context, name).await?;
        let entry = &held.entry;
        let written = entry.write(&self.inner.store, |row| {
            row.lifetime.timeout = timeout;
            match row.state {
                SandboxState::Paused => {
                    row.time_left = timeout.map(|seconds| i64::from(seconds) * MICROSECONDS);
                }
                SandboxState::Running => row.end_at = end_of(&row.lifetime),
                _ => {}
            }
        });
        let row = written.await?;
        self.inner.times.notify_one();
        Ok(row.into())
    }

    /// Sees to it that it lives for so long from now, at least.
    pub async fn extend(
        &self,
        context: &Context,
        name: &str,
        seconds: u32,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, Some(seconds))?;
        let held = self.held(context, name).await?;
        let entry = &held.entry;
        let row = entry.row();
        let end = now() + i64::from(seconds) * MICROSECONDS;
        if row.end_at.is_none_or(|before| before >= end) {
            return Ok(row.into());
        }
        let written = entry.write(&self.inner.store, |row| row.end_at = Some(end));
        let row = written.await?;
        self.inner.times.notify_one();
        Ok(row.into())
    }

    /// Counts as a use.
    pub fn keep_alive(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        entry.touch();
        Ok(entry.row().into())
    }

    /// Changes what its owner may change: what, is worked out of what it is when nobody else changes it.
    pub async fn change(
        &self,
        context: &Context,
        name: &str,
        change: impl FnOnce(&SandboxRow) -> Result<SandboxChange, Error>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        let held = self.held(context, name).await?;
        let (entry, store) = (&held.entry, &self.inner.store);
        let before = entry.row();
        let change = change(&before)?;
        if let Some(Some(alias)) = &change.alias {
            check_alias(alias)?;
        }
        if let Some(metadata) = &change.metadata {
            check_metadata(metadata)?;
        }
        let written = entry.write(store, |row| {
            row.limits = change.limits.unwrap_or(row.limits);
            row.alias = change.alias.unwrap_or(row.alias.take());
            row.metadata = change.metadata.unwrap_or(std::mem::take(&mut row.metadata));
            if let Some(lifetime) = change.lifetime {
                row.lifetime = Lifetime {
                    timeout: row.lifetime.timeout,
                    ..lifetime
                };
            }
        });
        let row = written.await?;
        // The row first: whether the alias is free is known only then.
        if row.limits != before.limits {
            let set = self.inner.runtime.set_limits(&row.id, row.limits).await;
            if let Err(error) = set {
                entry.write(store, |row| *row = before).await?;
                return Err(error);
            }
        }
        self.inner.times.notify_one();
        Ok(row.into())
    }

    /// A sandbox of the caller's, once nobody else changes it.
    async fn held(&self, context: &Context, name: &str) -> Result<Held, Error> {
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.inner.ledger.hold(entry).await
    }

    /// Connects it, or not, and says what it may reach.
    pub async fn set_network(
        &self,
        context: &Context,
        name: &str,
        network: Option<Network>,
        policy: Policy,
    ) -> Result<SandboxView, Error> {
        let used = self.enter(context, name, Scope::Sandboxes).await?;
        let held = self.held(context, name).await?;
        let entry = &held.entry;
        let network = network.unwrap_or_else(|| entry.with(|row| row.network));
        let runtime = &self.inner.runtime;
        let changed = runtime.set_network(used.id(), network, policy.clone());
        changed.await?;
        let written = entry.write(&self.inner.store, |row| {
            (row.network, row.policy) = (network, policy);
        });
        written.await.map(SandboxView::from)
    }
}

impl Inner {
    /// Rows of sandboxes that nobody was told of, and that could not be taken back yet.
    fn unmade(&self) -> MutexGuard<'_, HashMap<SandboxId, SandboxRow>> {
        self.unmade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back such a row.
    async fn unmake(&self, row: &SandboxRow) -> Result<(), Error> {
        let unmade = self.store.unmake(row, now()).await;
        unmade.map_err(error::store)?;
        self.unmade().remove(&row.id);
        Ok(())
    }

    /// The same for all that are left.
    pub(crate) async fn unmake_all(&self) {
        let rows: Vec<SandboxRow> = self.unmade().values().cloned().collect();
        for row in rows {
            let _ = self.unmake(&row).await;
        }
    }

    /// Takes a sandbox away whose row says that it is deleted, once its history is kept. If that does not work now, it
    /// is tried again.
    pub(crate) async fn bury(&self, id: &SandboxId, session: SessionId) -> Result<(), Error> {
        let farewell = history::keep(&self.store, session.clone());
        let gone = match self.runtime.delete_after(id, farewell).await {
            Err(error) if error.code != Code::SandboxNotFound => Err(error),
            _ => Ok(()),
        };
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        if gone.is_err() {
            leaving.insert(id.clone(), session);
        } else {
            leaving.remove(id);
        }
        gone
    }
}

fn full(most: Option<u32>) -> Error {
    let most = most.unwrap_or_default().to_string();
    Error::new(
        Code::QuotaExceeded,
        format!("concurrent sandbox limit reached: your org may have {most} at once"),
    )
    .remedy("delete or stop one, or have the org's maxSandboxes raised")
    .detail("max", most)
}

pub(crate) fn joined<T>(
    done: Result<Result<T, Error>, tokio::task::JoinError>,
) -> Result<T, Error> {
    done.unwrap_or_else(|failure| {
        tracing::error!(%failure, "a change of state failed");
        Err(Error::new(Code::Internal, "the change of state failed"))
    })
}
