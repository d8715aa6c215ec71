//! Operations on sandboxes of an org: create, list, change, transitions, delete.

mod change;
mod create;
mod delete;
mod list;
mod timeouts;
mod transitions;

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_model::{Code, Error, Page, PageRequest, SandboxId, SandboxState, Scope, Timings};
use atoll_store::SandboxRow;

use crate::live_sandboxes::{LiveSandbox, LockedSandbox};
use crate::{Core, RequestContext, error};
pub use change::SandboxChange;
pub use create::NewSandbox;
pub use list::{SandboxFilter, SandboxList};
pub(crate) use timeouts::{
    check_timeout, copy_deadlines, end_at_after_restart, microseconds, push_deadlines,
};

/// A sandbox as returned to its owner.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// The row.
    pub row: SandboxRow,
    /// Durations of the stages of its creation. Present only in the result of a create.
    pub timings: Option<Timings>,
}

impl From<SandboxRow> for SandboxView {
    fn from(row: SandboxRow) -> Self {
        Self { row, timings: None }
    }
}

impl Core {
    /// Returns a sandbox of the caller's org.
    pub async fn sandbox(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Read)?;
        let sandboxes = &self.inner.sandboxes;
        let entry = sandboxes.find(&context.org.id, name)?;
        if !self.catch_up(&entry).await {
            return Ok(entry.row().into());
        }
        // It may have been deleted meanwhile.
        Ok(sandboxes.find(&context.org.id, name)?.row().into())
    }

    /// Returns all sandboxes of the caller's org that are not deleted, in no order.
    pub fn list_active(&self, context: &RequestContext) -> Result<Vec<SandboxView>, Error> {
        context.require(Scope::Read)?;
        let all = self.inner.sandboxes.all().into_iter();
        let own = |row: &SandboxRow| (row.org == context.org.id).then(|| row.clone());
        let own = all.filter_map(|entry| entry.read(own));
        Ok(own.map(SandboxView::from).collect())
    }

    /// Returns a page of the sandboxes of the caller's org, including deleted ones, newest first. `state` restricts it to
    /// one state.
    pub async fn list_sessions(
        &self,
        context: &RequestContext,
        state: Option<SandboxState>,
        page: &PageRequest,
    ) -> Result<Page<SandboxView>, Error> {
        context.require(Scope::Read)?;
        let (store, more) = (&self.inner.store, page.with_lookahead());
        let rows = store.sandboxes(&context.org.id, true, state, &more).await;
        let rows = rows.map_err(error::store)?;
        let rows = rows.into_iter().map(SandboxView::from).collect();
        let position = |view: &SandboxView| (view.row.created_at, view.row.id.to_string());
        Ok(Page::from_lookahead(rows, page, position))
    }

    /// Finds a sandbox that the caller may change.
    fn find_writable(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<Arc<LiveSandbox>, Error> {
        context.require(Scope::Sandboxes)?;
        self.inner.sandboxes.find(&context.org.id, name)
    }

    /// Finds a sandbox of the caller's org and acquires its transition lock.
    async fn find_and_lock(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<LockedSandbox, Error> {
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        self.lock(entry).await
    }

    /// Acquires the transition lock of a sandbox whose row shows the state that the runtime has.
    pub(crate) async fn lock(&self, entry: Arc<LiveSandbox>) -> Result<LockedSandbox, Error> {
        self.catch_up(&entry).await;
        self.inner.sandboxes.lock(entry).await
    }
}

/// Rejects aliases that have the form of an id or are no DNS label.
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

fn quota_exceeded(max: Option<u32>) -> Error {
    let max = max.unwrap_or_default().to_string();
    Error::new(
        Code::QuotaExceeded,
        format!("concurrent sandbox limit reached: your org may have {max} at once"),
    )
    .remedy("delete or stop one, or have the org's maxSandboxes raised")
    .detail("max", max)
}
