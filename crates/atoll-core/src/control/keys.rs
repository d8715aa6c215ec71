//! API keys: creation, revocation and authentication.
//!
//! The secret of a key is `atl_` and 64 hex digits; `e2b_` with the same digits is the same key. Only a hash of the
//! digits is stored, and the first eight digits to recognize the key by.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use atoll_model::{
    Code, Error, Key, KeyId, Notification, Org, OrgId, Page, PageRequest, RequestId, Scope, Topic,
    lock,
};
use atoll_store::NewKey;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::{Core, Inner, RequestContext, error};

const PREFIXES: [&str; 2] = ["atl_", "e2b_"];
const SECRET_HEX_LEN: usize = 64;
/// Time for which an authenticated key is cached. Revoking a key or changing an org invalidates the whole cache.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// Time for which an authenticated key is accepted while the store does not respond.
const STALE_TTL: Duration = Duration::from_mins(5);
/// Maximum number of keys that an org can create, including revoked and expired ones that are not pruned yet.
const MAX_KEYS_PER_ORG: u32 = 10_000;
/// Time for which a revoked key is kept for streams that were authenticated before the revocation and do not watch
/// for it yet. They do so within milliseconds; the store rejects later requests.
const REVOKED_RETENTION: Duration = Duration::from_mins(10);
/// Minimum time between two updates of a key's last use, in microseconds.
const LAST_USED_RESOLUTION: i64 = 60_000_000;

/// Cache of authenticated keys, and notification about revoked ones.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: Mutex<Entries>,
    revoked: watch::Sender<Revoked>,
}

/// Keys that were revoked within the last [`REVOKED_RETENTION`], with the time of the revocation.
#[derive(Debug, Default)]
struct Revoked(HashMap<KeyId, Instant>);

impl Revoked {
    fn add(&mut self, key: KeyId, now: Instant) {
        self.0
            .retain(|_, at| now.duration_since(*at) < REVOKED_RETENTION);
        self.0.insert(key, now);
    }
}

#[derive(Debug, Default)]
struct Entries {
    /// Valid keys by the hash of their secret.
    keys: HashMap<String, (Instant, Key, Org)>,
    /// The operator's org.
    operator_org: Option<(Instant, Org)>,
    /// Incremented by each invalidation.
    generation: u64,
}

impl Cache {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }

    /// Finds a key that was looked up within the last `ttl`.
    fn get(&self, hash: &str, ttl: Duration) -> Option<(Key, Org)> {
        let known = self.entries();
        let (since, key, org) = known.keys.get(hash)?;
        (since.elapsed() < ttl).then(|| (key.clone(), org.clone()))
    }

    /// Changes the time of the last use in a cached key.
    fn set_last_used(&self, hash: &str, at: i64) {
        if let Some((_, key, _)) = self.entries().keys.get_mut(hash) {
            key.last_used_at = Some(at);
        }
    }

    /// Current generation. A caller reads it before a lookup and passes it to [`Self::insert_if_current`].
    fn generation(&self) -> u64 {
        self.entries().generation
    }

    /// Caches the result of a lookup unless the cache was invalidated since the lookup began.
    fn insert_if_current(&self, generation: u64, hash: String, key: Key, org: Org) {
        let mut known = self.entries();
        if known.generation != generation {
            return;
        }
        let keys = &mut known.keys;
        keys.retain(|_, (since, ..)| since.elapsed() < STALE_TTL);
        keys.insert(hash, (Instant::now(), key, org));
    }

    fn operator_org(&self) -> Option<Org> {
        let known = self.entries();
        let (since, org) = known.operator_org.as_ref()?;
        (since.elapsed() < CACHE_TTL).then(|| org.clone())
    }

    /// Waits until a key is revoked.
    pub(crate) async fn until_revoked(&self, key: &KeyId) {
        let mut revoked = self.revoked.subscribe();
        // Cannot fail: `self` owns the sender.
        let _ = revoked
            .wait_for(|revoked| revoked.0.contains_key(key))
            .await;
    }

    /// Notifies the streams of these keys.
    pub(crate) fn revoke(&self, keys: impl IntoIterator<Item = KeyId>) {
        let now = Instant::now();
        self.revoked.send_modify(|revoked| {
            for key in keys {
                revoked.add(key, now);
            }
        });
    }

    /// Empties the cache after a change of keys or orgs.
    pub(crate) fn invalidate(&self) {
        let mut known = self.entries();
        let generation = known.generation + 1;
        *known = Entries {
            generation,
            ..Entries::default()
        };
    }
}

/// Request to create a key.
#[derive(Debug, Clone)]
pub struct KeyRequest {
    /// Owner by id. `None`: the caller's org.
    pub org: Option<String>,
    /// Display name.
    pub name: String,
    /// Permissions.
    pub scope: Scope,
    /// Expiry in microseconds since 1970.
    pub expires_at: Option<i64>,
}

/// A new key with its secret, which is returned only once.
#[derive(Debug, Clone)]
pub struct CreatedKey {
    /// The key.
    pub key: Key,
    /// Its secret.
    pub secret: String,
}

/// Hash of a secret. `None` if the text does not have the form of a secret.
fn hash(secret: &str) -> Option<String> {
    digits(secret).map(|digits| hex(&Sha256::digest(digits.as_bytes())))
}

fn digits(secret: &str) -> Option<&str> {
    let digits = PREFIXES
        .iter()
        .find_map(|prefix| secret.strip_prefix(prefix));
    digits.filter(|digits| is_secret_hex(digits))
}

/// Whether a text is 64 lowercase hex digits: the form of access tokens and of the random part of keys and tickets.
pub fn is_secret_hex(text: &str) -> bool {
    text.len() == SECRET_HEX_LEN
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Whether a text has the form of an API key.
pub fn is_key(text: &str) -> bool {
    digits(text).is_some()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Generates 64 hex digits of a cryptographic secret.
pub fn random_secret_hex() -> String {
    // Four ids have 80 random characters out of 36: over 400 bits.
    let mut source = Sha256::new();
    for _ in 0..2 {
        source.update(KeyId::random().as_str());
        source.update(OrgId::random().as_str());
    }
    hex(&source.finalize())
}

/// The error for an invalid key.
pub(crate) fn refused() -> Error {
    Error::new(
        Code::InvalidApiKey,
        "the API key is unknown, expired or revoked",
    )
    .remedy(
        "send a valid key of this server in X-API-Key; POST /keys with an admin's key creates one",
    )
}

impl Core {
    /// Authenticates a caller by the secret of an API key.
    pub async fn authenticate(
        &self,
        secret: &str,
        request: RequestId,
    ) -> Result<RequestContext, Error> {
        if let Some(caller) = self.authenticate_static(secret, request.clone()).await? {
            return Ok(caller);
        }
        let hash = hash(secret).ok_or_else(refused)?;
        let (key, org) = match self.inner.keys.get(&hash, CACHE_TTL) {
            Some(known) => known,
            None => match self.look_up_key(&hash).await {
                // The store does not respond: the last known key applies for a while.
                Err(failure) if failure.code == Code::NoCapacity => {
                    self.inner.keys.get(&hash, STALE_TTL).ok_or(failure)?
                }
                found => found?,
            },
        };
        let now = self.inner.clock.system();
        if key.revoked_at.is_some() || key.expires_at.is_some_and(|end| end <= now) {
            return Err(refused());
        }
        if let Some(rate) = &self.inner.rate {
            rate.check(&key.id)?;
        }
        if key
            .last_used_at
            .is_none_or(|last| now - last > LAST_USED_RESOLUTION)
        {
            self.inner.keys.set_last_used(&hash, now);
            // A failed update is no reason to reject the request.
            let _ = self.inner.store.touch_key(&key.id, now).await;
        }
        Ok(RequestContext {
            org,
            key: Some(key.id),
            scope: key.scope,
            expires_at: key.expires_at,
            request,
        })
    }

    /// Looks up a valid key and its org in the store, and caches them.
    async fn look_up_key(&self, hash: &str) -> Result<(Key, Org), Error> {
        let generation = self.inner.keys.generation();
        let found = self.inner.store.key_by_hash(hash).await;
        let key = found.map_err(error::store)?.ok_or_else(refused)?;
        let org = self.inner.store.org(&key.org).await.map_err(error::store)?;
        let org = org.ok_or_else(refused)?;
        let hash = hash.to_owned();
        let (cached, owner) = (key.clone(), org.clone());
        self.inner
            .keys
            .insert_if_current(generation, hash, cached, owner);
        Ok((key, org))
    }

    /// Context of the operator, who needs no key: a caller on the server's Unix socket.
    pub async fn operator(&self, request: RequestId) -> Result<RequestContext, Error> {
        let org = if let Some(known) = self.inner.keys.operator_org() {
            known
        } else {
            let org = self.first_org().await?;
            self.inner.keys.entries().operator_org = Some((Instant::now(), org.clone()));
            org
        };
        Ok(RequestContext {
            org,
            key: None,
            scope: Scope::Admin,
            expires_at: None,
            request,
        })
    }

    /// Whether an admin key was ever used. An unused one does not count: its secret may have been lost.
    pub async fn has_admin_key(&self) -> Result<bool, Error> {
        let org = self.first_org().await?;
        let keys = self.inner.store.keys(&org.id).await;
        let keys = keys.map_err(error::store)?;
        let known = |key: &Key| key.scope == Scope::Admin && key.last_used_at.is_some();
        Ok(keys.iter().any(known))
    }

    /// Whether a key was created by this server, revoked or not. Does not update its last use.
    pub async fn is_known_key(&self, secret: &str) -> Result<bool, Error> {
        let Some(hash) = hash(secret) else {
            return Ok(false);
        };
        let found = self.inner.store.key_by_hash(&hash).await;
        Ok(found.map_err(error::store)?.is_some())
    }

    /// The org whose keys a request concerns. Only admins may name another org than their own.
    async fn key_org(&self, context: &RequestContext, org: Option<&str>) -> Result<OrgId, Error> {
        context.require(Scope::Sandboxes)?;
        match org {
            None => Ok(context.org.id.clone()),
            Some(org) => Ok(self.org(context, org).await?.id),
        }
    }

    /// Creates a key. Its scope and expiry may not exceed those of the caller's key.
    pub async fn create_key(
        &self,
        context: &RequestContext,
        request: KeyRequest,
    ) -> Result<CreatedKey, Error> {
        let org = self.key_org(context, request.org.as_deref()).await?;
        context.require(request.scope)?;
        Org::check_name(&request.name)?;
        let invalid = |message, remedy: &str| Err(Error::invalid("expiresAt", message, remedy));
        if request
            .expires_at
            .is_some_and(|end| end <= self.inner.clock.system())
        {
            let remedy = "give a later time, or leave it out";
            return invalid("expiresAt is in the past", remedy);
        }
        let expires_at = request.expires_at.or(context.expires_at);
        if context.expires_at.is_some() && expires_at > context.expires_at {
            let remedy = "give an earlier time, or leave it out";
            return invalid("expiresAt is later than that of your own key", remedy);
        }
        let digits = random_secret_hex();
        let secret = format!("{}{digits}", PREFIXES[0]);
        let key = Key {
            id: KeyId::random(),
            org,
            name: request.name,
            prefix: digits[..8].to_owned(),
            scope: request.scope,
            created_at: self.now(),
            expires_at,
            last_used_at: None,
            revoked_at: None,
        };
        let new = NewKey {
            hash: hash(&secret).unwrap_or_default(),
            key,
        };
        // Admins are exempt, so that keys of others cannot lock them out.
        let max = match context.require(Scope::Admin) {
            Ok(()) => u32::MAX,
            Err(_) => MAX_KEYS_PER_ORG,
        };
        let added = self.inner.store.insert_key(&new, max).await;
        if !added.map_err(error::store)? {
            let message = format!(
                "the org has {MAX_KEYS_PER_ORG} keys, including recently revoked and expired ones"
            );
            let remedy = "use fewer keys: revoked and expired ones count for 30 days";
            return Err(Error::new(Code::QuotaExceeded, message).remedy(remedy));
        }
        Ok(CreatedKey {
            key: new.key,
            secret,
        })
    }

    /// Returns the keys of an org, newest first.
    pub async fn keys(
        &self,
        context: &RequestContext,
        org: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<Key>, Error> {
        let org = self.key_org(context, org).await?;
        let keys = self.inner.store.keys(&org).await.map_err(error::store)?;
        Ok(Page::from_unsorted(keys, page, |key: &Key| {
            (key.created_at, key.id.to_string())
        }))
    }

    /// Revokes a key, whose scope may not exceed that of the caller's key, and ends its open streams.
    pub async fn revoke_key(
        &self,
        context: &RequestContext,
        org: Option<&str>,
        id: &str,
    ) -> Result<(), Error> {
        let org = self.key_org(context, org).await?;
        let keys = self.inner.store.keys(&org).await.map_err(error::store)?;
        let not_found = || Error::new(Code::KeyNotFound, "there is no such key");
        let key = keys.into_iter().find(|key| key.id.as_str() == id);
        let key = key.ok_or_else(not_found)?;
        context.require(key.scope)?;
        let done = self.inner.store.revoke_key(&org, &key.id, self.now()).await;
        // After an error the key may be revoked nevertheless.
        let revoked = if matches!(done, Ok(true)) {
            vec![key.id]
        } else {
            Vec::new()
        };
        self.inner.announce_revoked(&org, revoked);
        if done.map_err(error::store)? {
            Ok(())
        } else {
            Err(not_found())
        }
    }
}

impl Inner {
    /// Applies the revocation of keys in this process, and notifies other processes.
    pub(crate) fn announce_revoked(&self, org: &OrgId, keys: Vec<KeyId>) {
        self.apply_revoked(org, keys.clone());
        let org = org.clone();
        self.events.publish(Notification::KeysRevoked { org, keys });
    }

    /// Rejects the keys of an org and its tickets from now on, and ends open streams of the keys.
    fn apply_revoked(&self, org: &OrgId, keys: Vec<KeyId>) {
        self.keys.invalidate();
        self.tickets.invalidate_org(org);
        self.keys.revoke(keys);
    }
}

/// Background task that applies revocations of other processes.
pub(crate) async fn revocation_loop(inner: Weak<Inner>) {
    let subscribed = inner.upgrade();
    let Some(mut revoked) = subscribed.map(|inner| inner.events.subscribe(Topic::KeysRevoked))
    else {
        return;
    };
    loop {
        let notification = revoked.next().await;
        let Some(inner) = inner.upgrade() else { return };
        match notification {
            Some(Notification::KeysRevoked { org, keys }) => inner.apply_revoked(&org, keys),
            Some(_) => {}
            // Which keys is unknown: read all of them again.
            None => inner.keys.invalidate(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_keys_are_dropped_after_retention() {
        let (mut revoked, begin) = (Revoked::default(), Instant::now());
        for second in 0..5_000 {
            revoked.add(KeyId::random(), begin + Duration::from_secs(second));
        }
        assert_eq!(revoked.0.len() as u64, REVOKED_RETENTION.as_secs());
    }

    #[test]
    fn lookup_before_an_invalidation_is_not_cached() {
        let (cache, org) = (Cache::default(), OrgId::random());
        let key = Key {
            id: KeyId::random(),
            org: org.clone(),
            name: "k".into(),
            prefix: "00000000".into(),
            scope: Scope::Read,
            created_at: 1,
            expires_at: None,
            last_used_at: None,
            revoked_at: None,
        };
        let org = Org {
            id: org,
            name: "o".into(),
            max_sandboxes: None,
            max_timeout: None,
            created_at: 1,
        };
        let put = |generation| {
            cache.insert_if_current(generation, "hash".into(), key.clone(), org.clone());
        };
        let generation = cache.generation();
        // The key is revoked during the lookup.
        cache.invalidate();
        put(generation);
        assert!(cache.get("hash", CACHE_TTL).is_none());
        put(cache.generation());
        assert!(cache.get("hash", CACHE_TTL).is_some());
    }
}
