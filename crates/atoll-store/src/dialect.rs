//! Statements and errors that differ between SQLite and PostgreSQL.

use atoll_model::{Idempotency, OrgId};
use sqlx::sqlite::SqliteError;

use crate::database::{On, Transaction, execute, fetch_optional};
use crate::{Result, Store};

/// Waits for other transactions that lock the org, and makes them wait. Rows that refer to the org can be inserted
/// meanwhile.
const LOCK_ORG: &str = "SELECT id FROM orgs WHERE id = $1 FOR NO KEY UPDATE";
/// Also waits for inserts of rows that refer to the org, and prevents them.
const LOCK_ORG_FOR_REMOVAL: &str = "SELECT id FROM orgs WHERE id = $1 FOR UPDATE";
const LOCK_ORG_OF_SANDBOX: &str = "SELECT orgs.id FROM orgs JOIN sandboxes ON sandboxes.org = orgs.id \
     WHERE sandboxes.id = $1 FOR NO KEY UPDATE OF orgs";

/// Extended result code of SQLite for a violated primary key.
const SQLITE_CONSTRAINT_PRIMARYKEY: &str = "1555";
/// Constraint of PostgreSQL: the primary key of `idempotency`.
const IDEMPOTENCY_KEY: &str = "idempotency_pkey";
const HAS_IDEMPOTENCY_KEY: &str = "SELECT sandbox FROM idempotency WHERE org = $1 AND key = $2";

/// Lock on the row of an org until the end of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrgLock {
    /// Excludes other transactions that count rows of the org.
    Quota,
    /// Also excludes inserts of rows that refer to the org.
    Removal,
}

impl Transaction<'_> {
    /// Locks an org. A transaction of SQLite excludes all other writers anyway.
    pub(crate) async fn lock_org(&mut self, id: &OrgId, lock: OrgLock) -> Result<()> {
        let statement = match lock {
            OrgLock::Quota => LOCK_ORG,
            OrgLock::Removal => LOCK_ORG_FOR_REMOVAL,
        };
        self.lock(statement, id.as_str()).await
    }

    /// Locks the org of a sandbox against other transactions that count its rows.
    pub(crate) async fn lock_org_of_sandbox(&mut self, sandbox: &str) -> Result<()> {
        self.lock(LOCK_ORG_OF_SANDBOX, sandbox).await
    }

    async fn lock(&mut self, statement: &'static str, id: &str) -> Result<()> {
        if let on @ On::Postgres(_) = self.on() {
            execute!(on, statement, id)?;
        }
        Ok(())
    }
}

/// Text that PostgreSQL can store: it has no NUL characters.
pub(crate) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

impl Store {
    /// Whether an insert of a sandbox failed because its idempotency key exists.
    pub(crate) async fn is_idempotency_violation(
        &self,
        error: &sqlx::Error,
        org: &OrgId,
        idempotency: Option<&Idempotency>,
    ) -> Result<bool> {
        let (sqlx::Error::Database(error), Some(idempotency)) = (error, idempotency) else {
            return Ok(false);
        };
        if error.try_downcast_ref::<SqliteError>().is_none() {
            return Ok(error.constraint() == Some(IDEMPOTENCY_KEY));
        }
        // SQLite names the constraint only in the text of the message. The primary key of `sandboxes` has the same code.
        if error.code().as_deref() != Some(SQLITE_CONSTRAINT_PRIMARYKEY) {
            return Ok(false);
        }
        let found = fetch_optional!(
            self.reader(),
            (String,),
            HAS_IDEMPOTENCY_KEY,
            org.as_str(),
            &idempotency.key
        )?;
        Ok(found.is_some())
    }
}
