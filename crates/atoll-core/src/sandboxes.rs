//! Sandboxes: made, looked at, changed and taken away, each within its org's limits.

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
pub(crate) use timeouts::{check_timeout, end_at_after_restart, microseconds};
pub(crate) use transitions::{Precondition, unconditional};

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

impl Core {
    /// A sandbox of the caller's.
    pub fn sandbox(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        Ok(entry.row().into())
    }

    /// Every sandbox of the caller's that is not deleted, in no order.
    pub fn list_active(&self, context: &RequestContext) -> Result<Vec<SandboxView>, Error> {
        context.require(Scope::Read)?;
        let all = self.inner.sandboxes.all().into_iter();
        let own = |row: &SandboxRow| (row.org == context.org.id).then(|| row.clone());
        let own = all.filter_map(|entry| entry.read(own));
        Ok(own.map(SandboxView::from).collect())
    }

    /// The caller's sandboxes, also deleted ones, newest first; perhaps only those in a state.
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
        let place = |view: &SandboxView| (view.row.created_at, view.row.id.to_string());
        Ok(Page::from_lookahead(rows, page, place))
    }

    /// One that the caller may change.
    fn find_writable(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<Arc<LiveSandbox>, Error> {
        context.require(Scope::Sandboxes)?;
        self.inner.sandboxes.find(&context.org.id, name)
    }

    /// A sandbox of the caller's, once nobody else changes it.
    async fn find_and_lock(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<LockedSandbox, Error> {
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        self.inner.sandboxes.lock(entry).await
    }
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

fn quota_exceeded(most: Option<u32>) -> Error {
    let most = most.unwrap_or_default().to_string();
    Error::new(
        Code::QuotaExceeded,
        format!("concurrent sandbox limit reached: your org may have {most} at once"),
    )
    .remedy("delete or stop one, or have the org's maxSandboxes raised")
    .detail("max", most)
}
