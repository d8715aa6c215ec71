//! The `idempotency` table: maps the idempotency key of a create to its request fingerprint and sandbox.
//!
//! [`Store::insert_sandbox`] inserts into it, in the transaction that inserts the sandbox.

use atoll_model::{OrgId, SandboxId};

use crate::database::{execute, fetch_optional};
use crate::{Result, SandboxRow, Store};

const SELECT_IDEMPOTENCY: &str =
    "SELECT fingerprint, sandbox FROM idempotency WHERE org = $1 AND key = $2";
pub(crate) const DELETE_IDEMPOTENCY: &str = "DELETE FROM idempotency WHERE sandbox = $1";
const PRUNE: &str = "DELETE FROM idempotency WHERE sandbox IN \
     (SELECT sandbox FROM idempotency WHERE created_at < $1 LIMIT $2)";

impl Store {
    /// Finds the create that used an idempotency key before: the fingerprint of its request and its sandbox.
    pub async fn find_idempotent(
        &self,
        org: &OrgId,
        key: &str,
    ) -> Result<Option<(String, SandboxRow)>> {
        let _time = self.time("said_before");
        let (reader, org) = (self.reader(), org.as_str());
        let found = fetch_optional!(reader, (String, String), SELECT_IDEMPOTENCY, org, key)?;
        let Some((fingerprint, sandbox)) = found else {
            return Ok(None);
        };
        let row = self.sandbox_by_id(&sandbox).await?;
        Ok(row.map(|row| (fingerprint, row)))
    }

    /// Deletes the idempotency key of a failed create, so that the client can retry with the same key.
    pub async fn delete_idempotency_key(&self, sandbox: &SandboxId) -> Result<()> {
        let _time = self.time("forget_said");
        execute!(self.writer().on(), DELETE_IDEMPOTENCY, sandbox.as_str())?;
        Ok(())
    }

    /// Deletes up to `limit` idempotency keys that were created before a time. Returns their number.
    pub async fn prune_idempotency_keys(&self, before: i64, limit: u32) -> Result<u64> {
        let _time = self.time("forget_said_before");
        Ok(execute!(
            self.writer().on(),
            PRUNE,
            before,
            i64::from(limit)
        )?)
    }
}
