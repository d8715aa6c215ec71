//! Keys: `atl_` and 64 hex digits. `e2b_` before the same digits is the same key. Kept is a hash of the
//! digits, and the first eight to tell a key by.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, Key, KeyId, Org, OrgId, RequestId, Scope};
use atoll_store::NewKey;
use sha2::{Digest as _, Sha256};

use crate::{Context, Core, error, now};

const PREFIXES: [&str; 2] = ["atl_", "e2b_"];
const DIGITS: usize = 64;
/// For so long a key that was found good is not asked for again; revoking one forgets them all.
const REMEMBERED: Duration = Duration::from_secs(10);
/// The last use of a key is noted at most so often, in microseconds.
const NOTED: i64 = 60_000_000;

/// Keys that were found good a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    keys: HashMap<String, (Instant, Key, Org)>,
    /// The operator's org: who needs no key asks as often as others.
    operator: Option<(Instant, Org)>,
}

impl Cache {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, hash: &str) -> Option<(Key, Org)> {
        let known = self.known();
        let (since, key, org) = known.keys.get(hash)?;
        (since.elapsed() < REMEMBERED).then(|| (key.clone(), org.clone()))
    }

    fn put(&self, hash: String, key: Key, org: Org) {
        let keys = &mut self.known().keys;
        keys.retain(|_, (since, ..)| since.elapsed() < REMEMBERED);
        keys.insert(hash, (Instant::now(), key, org));
    }

    fn operator(&self) -> Option<Org> {
        let known = self.known();
        let (since, org) = known.operator.as_ref()?;
        (since.elapsed() < REMEMBERED).then(|| org.clone())
    }

    /// Something about keys or orgs has changed.
    pub(crate) fn forget(&self) {
        *self.known() = Known::default();
    }
}

/// What a new key is to be.
#[derive(Debug, Clone)]
pub struct KeyRequest {
    /// What people call it.
    pub name: String,
    /// What it is good for.
    pub scope: Scope,
    /// From when on it is not accepted: microseconds since 1970.
    pub expires_at: Option<i64>,
}

/// A key with its secret, which is told this once.
#[derive(Debug, Clone)]
pub struct MadeKey {
    /// The key.
    pub key: Key,
    /// Its secret.
    pub secret: String,
}

/// What is kept of a secret, if it has the form of one.
fn hash(secret: &str) -> Option<String> {
    let digits = PREFIXES
        .iter()
        .find_map(|prefix| secret.strip_prefix(prefix))?;
    let plain = digits.len() == DIGITS
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    plain.then(|| hex(&Sha256::digest(digits.as_bytes())))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// 64 hex digits that nobody guesses.
pub fn random_digits() -> String {
    // Two ids are 40 characters of 36 letters each from the system's random source: over 200 bits.
    let mut source = Sha256::new();
    for _ in 0..2 {
        source.update(KeyId::random().as_str());
        source.update(OrgId::random().as_str());
    }
    hex(&source.finalize())
}

impl Core {
    /// Who brings this secret.
    pub async fn authenticate(&self, secret: &str, request: RequestId) -> Result<Context, Error> {
        let refused = || {
            Error::new(
                Code::PermissionDenied,
                "this key is not known here, or not any more",
            )
            .remedy("use a key of this server: GET /keys over run/api.sock of its data directory lists them")
        };
        let hash = hash(secret).ok_or_else(refused)?;
        let (key, org) = if let Some(known) = self.inner.keys.get(&hash) {
            known
        } else {
            let found = self.inner.store.key_by_hash(&hash).await;
            let key = found.map_err(error::store)?.ok_or_else(refused)?;
            let org = self.inner.store.org(&key.org).await.map_err(error::store)?;
            let org = org.ok_or_else(refused)?;
            self.inner.keys.put(hash, key.clone(), org.clone());
            (key, org)
        };
        let now = now();
        if key.revoked_at.is_some() || key.expires_at.is_some_and(|end| end <= now) {
            return Err(refused());
        }
        if let Some(rate) = &self.inner.rate {
            rate.check(&key.id)?;
        }
        if key.last_used_at.is_none_or(|last| now - last > NOTED) {
            // A note that fails is no reason to refuse anybody.
            let _ = self.inner.store.key_used(&key.id, now).await;
            self.inner.keys.forget();
        }
        Ok(Context {
            org,
            key: Some(key.id),
            scope: key.scope,
            request,
        })
    }

    /// Who may do everything: the operator on this machine.
    pub async fn operator(&self, request: RequestId) -> Result<Context, Error> {
        let org = if let Some(known) = self.inner.keys.operator() {
            known
        } else {
            let org = self.first_org().await?;
            self.inner.keys.known().operator = Some((Instant::now(), org.clone()));
            org
        };
        Ok(Context {
            org,
            key: None,
            scope: Scope::Admin,
            request,
        })
    }

    /// Makes a key for the caller's org, at most as powerful as the caller.
    pub async fn make_key(&self, context: &Context, asked: KeyRequest) -> Result<MadeKey, Error> {
        context.require(Scope::Sandboxes)?;
        context.require(asked.scope)?;
        Org::check_name(&asked.name)?;
        if asked.expires_at.is_some_and(|end| end <= now()) {
            return Err(Error::invalid(
                "expiresAt",
                "expiresAt is in the past",
                "give a later time, or leave it out",
            ));
        }
        let digits = random_digits();
        let secret = format!("{}{digits}", PREFIXES[0]);
        let key = Key {
            id: KeyId::random(),
            org: context.org.id.clone(),
            name: asked.name,
            prefix: digits[..8].to_owned(),
            scope: asked.scope,
            created_at: now(),
            expires_at: asked.expires_at,
            last_used_at: None,
            revoked_at: None,
        };
        let new = NewKey {
            hash: hash(&secret).unwrap_or_default(),
            key,
        };
        self.inner.store.add_key(&new).await.map_err(error::store)?;
        Ok(MadeKey {
            key: new.key,
            secret,
        })
    }

    /// The keys of the caller's org, newest first.
    pub async fn keys(&self, context: &Context) -> Result<Vec<Key>, Error> {
        context.require(Scope::Sandboxes)?;
        let keys = self.inner.store.keys(&context.org.id).await;
        keys.map_err(error::store)
    }

    /// Makes a key useless, at once.
    pub async fn revoke_key(&self, context: &Context, id: &str) -> Result<(), Error> {
        context.require(Scope::Sandboxes)?;
        let unknown = || Error::new(Code::KeyNotFound, "there is no such key");
        let id: KeyId = id.parse().map_err(|_| unknown())?;
        let done = self
            .inner
            .store
            .revoke_key(&context.org.id, &id, now())
            .await;
        self.inner.keys.forget();
        self.inner.tickets.forget(&context.org.id);
        if done.map_err(error::store)? {
            Ok(())
        } else {
            Err(unknown())
        }
    }
}
