//! Quota of concurrent sandboxes in an org.
//!
//! Rows are counted and claimed in one transaction that excludes other claims of the org, so that two of them cannot
//! both take the last place.

use atoll_model::SandboxId;

use crate::database::execute;
use crate::{Result, Store};

/// States of sandboxes that count towards the quota, as an SQL list.
macro_rules! counted_states {
    () => {
        "('creating', 'running', 'stopping', 'paused')"
    };
}
pub(crate) use counted_states;

// A row in state `creating` is claimed again if the server could not record the result of an earlier start.
const CLAIM_START: &str = concat!(
    "UPDATE sandboxes SET state = 'creating' WHERE id = $1 AND state IN ('stopped', 'creating') \
     AND (CAST($2 AS BIGINT) IS NULL OR (SELECT COUNT(*) FROM sandboxes AS other WHERE other.org = sandboxes.org AND other.id <> sandboxes.id \
     AND other.deleted_at IS NULL AND other.state IN ",
    counted_states!(),
    ") < $2)"
);

/// Result of a claim on the sandbox quota of an org.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaClaim {
    /// The sandbox counts towards the quota, and its row is written.
    Granted,
    /// The org has its maximum number of sandboxes. Nothing was written.
    Exceeded,
}

impl Store {
    /// Claims quota for the start of a stopped sandbox and sets its state to `creating`. `max` is the org's limit;
    /// `None` means no limit.
    pub async fn claim_quota_for_start(
        &self,
        id: &SandboxId,
        max: Option<u32>,
    ) -> Result<QuotaClaim> {
        let _time = self.time("claim_again");
        let mut transaction = self.begin().await?;
        if max.is_some() {
            transaction.lock_org_of_sandbox(id.as_str()).await?;
        }
        let max = max.map(i64::from);
        let claimed = execute!(transaction.on(), CLAIM_START, id.as_str(), max)?;
        transaction.commit().await?;
        Ok(if claimed == 1 {
            QuotaClaim::Granted
        } else {
            QuotaClaim::Exceeded
        })
    }
}
