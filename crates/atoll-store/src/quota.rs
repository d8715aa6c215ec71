//! Quota of concurrent sandboxes in an org.
//!
//! Rows are counted and claimed in one transaction that excludes other claims of the org, so that two of them cannot
//! both take the last place.

use atoll_model::SandboxId;

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
     AND ($2 IS NULL OR (SELECT COUNT(*) FROM sandboxes AS other WHERE other.org = sandboxes.org AND other.id <> sandboxes.id \
     AND other.deleted_at IS NULL AND other.state IN ",
    counted_states!(),
    ") < $2)"
);
// Changes nothing, but takes a lock on the org's row: concurrent claims wait for the end of this transaction.
const LOCK_ORG: &str =
    "UPDATE orgs SET name = name WHERE id = (SELECT org FROM sandboxes WHERE id = $1)";

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
        let writer = self.writer();
        let mut transaction = writer.begin().await?;
        if max.is_some() {
            let query = sqlx::query(LOCK_ORG).bind(id.as_str());
            query.execute(&mut *transaction).await?;
        }
        let query = sqlx::query(CLAIM_START)
            .bind(id.as_str())
            .bind(max.map(i64::from));
        let claimed = query.execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(if claimed.rows_affected() == 1 {
            QuotaClaim::Granted
        } else {
            QuotaClaim::Exceeded
        })
    }
}
