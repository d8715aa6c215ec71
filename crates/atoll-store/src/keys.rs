//! The `keys` table. Secrets are stored only as hashes.

use atoll_model::{Key, KeyId, OrgId, Scope};
use sqlx::FromRow;

use crate::database::{execute, fetch_all, fetch_optional};
use crate::dialect::OrgLock;
use crate::{Error, Result, Store, decode_text, encode, on_constraint_violation};

const TABLE: &str = "keys";
const BY_HASH: &str = "SELECT id, org, name, prefix, scope, created_at, expires_at, last_used_at, revoked_at \
     FROM keys WHERE hash = $1";
const OF_ORG: &str = "SELECT id, org, name, prefix, scope, created_at, expires_at, last_used_at, revoked_at \
     FROM keys WHERE org = $1 ORDER BY created_at DESC, id";
const INSERT: &str = "INSERT INTO keys (id, org, name, hash, prefix, scope, created_at, expires_at) \
     SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE (SELECT count(*) FROM keys WHERE org = $2) < $9";
const TOUCH: &str = "UPDATE keys SET last_used_at = $2 WHERE id = $1";
// Admin keys stay, because their rows show whether one was ever used.
const PRUNE: &str = "DELETE FROM keys WHERE id IN (SELECT id FROM keys \
     WHERE (revoked_at < $1 OR expires_at < $1) AND scope <> $3 LIMIT $2)";
const REVOKE: &str =
    "UPDATE keys SET revoked_at = $3 WHERE id = $1 AND org = $2 AND revoked_at IS NULL";

#[derive(FromRow)]
struct Row {
    id: String,
    org: String,
    name: String,
    prefix: String,
    scope: String,
    created_at: i64,
    expires_at: Option<i64>,
    last_used_at: Option<i64>,
    revoked_at: Option<i64>,
}

impl TryFrom<Row> for Key {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        Ok(Self {
            id: decode_text(TABLE, row.id)?,
            org: decode_text(TABLE, row.org)?,
            name: row.name,
            prefix: row.prefix,
            scope: decode_text(TABLE, row.scope)?,
            created_at: row.created_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
        })
    }
}

/// A key to insert.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The key without its secret.
    pub key: Key,
    /// Hash of the secret.
    pub hash: String,
}

impl Store {
    /// Finds a key by the hash of its secret.
    pub async fn key_by_hash(&self, hash: &str) -> Result<Option<Key>> {
        let _time = self.time("key_by_hash");
        let row = fetch_optional!(self.reader(), Row, BY_HASH, hash)?;
        row.map(Key::try_from).transpose()
    }

    /// Returns the keys of an org, newest first.
    pub async fn keys(&self, org: &OrgId) -> Result<Vec<Key>> {
        let _time = self.time("keys");
        let rows = fetch_all!(self.reader(), Row, OF_ORG, org.as_str())?;
        rows.into_iter().map(Key::try_from).collect()
    }

    /// Inserts a key unless its org already has `max` keys. Returns whether it was inserted.
    pub async fn insert_key(&self, new: &NewKey, max: u32) -> Result<bool> {
        let _time = self.time("add_key");
        let key = &new.key;
        let mut transaction = self.begin().await?;
        transaction.lock_org(&key.org, OrgLock::Quota).await?;
        let added = execute!(
            transaction.on(),
            INSERT,
            key.id.as_str(),
            key.org.as_str(),
            &key.name,
            &new.hash,
            &key.prefix,
            encode(&key.scope),
            key.created_at,
            key.expires_at,
            i64::from(max)
        )
        .map_err(on_constraint_violation("the key"))?;
        transaction.commit().await?;
        Ok(added == 1)
    }

    /// Deletes up to `limit` keys that were revoked or expired before a time. Returns their number.
    pub async fn prune_keys(&self, before: i64, limit: u32) -> Result<u64> {
        let (limit, kept) = (i64::from(limit), encode(&Scope::Admin));
        Ok(execute!(self.writer().on(), PRUNE, before, limit, kept)?)
    }

    /// Sets the time of a key's last use.
    pub async fn touch_key(&self, id: &KeyId, at: i64) -> Result<()> {
        let _time = self.time("key_used");
        execute!(self.writer().on(), TOUCH, id.as_str(), at)?;
        Ok(())
    }

    /// Revokes a key of an org. Returns false if it does not exist or was revoked before.
    pub async fn revoke_key(&self, org: &OrgId, id: &KeyId, at: i64) -> Result<bool> {
        let _time = self.time("revoke_key");
        let revoked = execute!(self.writer().on(), REVOKE, id.as_str(), org.as_str(), at)?;
        Ok(revoked == 1)
    }
}
