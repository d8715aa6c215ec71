//! Sandboxes are made: a row first, then what it says. Whoever says the same again gets the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::{
    Code, Error, Idempotency, Lifetime, Org, PortAccess, SandboxId, SandboxInfo, SandboxSpec,
    SandboxState, Scope, SessionId,
};
use atoll_store::{QuotaClaim, SandboxRow};
use atoll_worker::BeforeCreate;

use super::times::{check_timeout, end_of};
use super::{SandboxView, check_alias, check_metadata, full};
use crate::ledger::{Entry, Held};
use crate::{Context, Core, Inner, error, keys, outlast};

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
    /// Callers that may use its ports.
    pub port_access: PortAccess,
    /// By which this can be said again.
    pub again: Option<Idempotency>,
}

/// Who waits for the create of somebody else looks at least so often what became of it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
        let work = async move {
            if let Some(again) = asked.again.clone() {
                return core.make_once(org, asked, again).await;
            }
            core.make(org, asked).await
        };
        outlast(work).await
    }

    /// Makes a sandbox unless it was made when the same was said before.
    async fn make_once(
        &self,
        org: Org,
        asked: NewSandbox,
        again: Idempotency,
    ) -> Result<SandboxView, Error> {
        let mut news = self.inner.store.subscribe_changes();
        loop {
            news.mark_unchanged();
            let before = self.inner.store.find_idempotent(&org.id, &again.key).await;
            let Some((fingerprint, row)) = before.map_err(error::store)? else {
                match self.make(org.clone(), asked.clone()).await {
                    // Somebody says the same just now.
                    Err(error) if error.code == Code::IdempotencyMismatch => continue,
                    made => return made,
                }
            };
            if fingerprint != again.fingerprint {
                return Err(error::store(atoll_store::Error::IdempotencyKeyTaken));
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
        let spec = asked.spec.clone();
        let announce: BeforeCreate = {
            let (core, held) = (self.clone(), Arc::clone(&held));
            let begin = Instant::now();
            Box::new(move |id| {
                Box::pin(async move {
                    core.inner.meters.placed(begin.elapsed());
                    let new = core.write_new(id, org, asked).await?;
                    *held.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
                    Ok(())
                })
            })
        };
        let made = self.inner.runtime.create_with_hook(spec, announce).await;
        // Until its row says what became of it, nobody else changes it.
        let held = held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let entry = held.as_ref().map(|held| &held.entry);
        match (made, entry) {
            (Ok(info), Some(entry)) => self.write_made(entry, info).await,
            (Ok(_), None) => Err(Error::new(Code::Internal, "the sandbox was not announced")),
            (Err(error), None) => Err(error),
            (Err(error), Some(entry)) => {
                self.write_failed(entry, &error).await?;
                Err(error)
            }
        }
    }

    /// Writes down that there will be one, if its org may have one more.
    async fn write_new(&self, id: SandboxId, org: Org, asked: NewSandbox) -> Result<Held, Error> {
        let row = SandboxRow {
            id,
            session: SessionId::random(),
            org: org.id,
            alias: asked.alias,
            template: asked.spec.template,
            state: SandboxState::Creating,
            reason: None,
            error: None,
            metadata: asked.metadata,
            limits: asked.spec.limits,
            network: asked.spec.network,
            policy: asked.spec.policy,
            port_access: asked.port_access,
            durable: asked.spec.durable,
            lifetime: asked.lifetime,
            created_at: self.now(),
            started_at: None,
            end_at: None,
            time_left: None,
            stopped_at: None,
            deleted_at: None,
        };
        let store = &self.inner.store;
        let made = store.insert_sandbox(&row, org.max_sandboxes, asked.again.as_ref());
        // The org was removed, and the caller's key with it, after the caller was authenticated.
        let made = made.await.map_err(|error| match error {
            atoll_store::Error::OrgNotFound => keys::refused(),
            error => error::store(error),
        });
        if made? == QuotaClaim::Exceeded {
            return Err(full(org.max_sandboxes));
        }
        Ok(self.inner.ledger.add_held(row).await)
    }

    /// Writes down that it runs.
    async fn write_made(
        &self,
        entry: &Arc<Entry>,
        info: SandboxInfo,
    ) -> Result<SandboxView, Error> {
        let written = entry.write(&self.inner.store, |row| {
            row.state = info.state;
            row.started_at = Some(self.now());
            row.end_at = end_of(&row.lifetime, self.now());
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

    /// Writes down that it could not be made.
    async fn write_failed(&self, entry: &Arc<Entry>, error: &Error) -> Result<(), Error> {
        let text = error.message.clone();
        // Nobody knows its id: the row is history at once, and its place in the org is free.
        let written = entry.write(&self.inner.store, |row| {
            row.state = SandboxState::Failed;
            row.error = Some(text);
            row.deleted_at = Some(self.now());
        });
        let written = written.await;
        let id = entry.with(|row| row.id.clone());
        self.inner.ledger.remove(&id);
        written?;
        let forgotten = self.inner.store.delete_idempotency_key(&id).await;
        forgotten.map_err(error::store)
    }
}

impl Inner {
    /// Rows of sandboxes that nobody was told of, and that could not be taken back yet.
    fn unmade(&self) -> MutexGuard<'_, HashMap<SandboxId, SandboxRow>> {
        self.unmade.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back such a row.
    async fn unmake(&self, row: &SandboxRow) -> Result<(), Error> {
        let unmade = self.store.discard_create(row, self.clock.now()).await;
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
}
