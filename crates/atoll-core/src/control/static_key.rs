//! The static key: one API key of any form for one org, chosen by the operator.
//!
//! It has the scope `sandbox:*`, has no row, and cannot be revoked; a restart without it invalidates it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, KeyId, Org, RequestId, Scope, lock};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::control::keys::{hex, is_key};
use crate::{Core, RequestContext, error};

/// Longest accepted key, in bytes.
const MAX_LEN: usize = 512;
/// Time for which the org is cached.
const CACHE_TTL: Duration = Duration::from_secs(10);

/// A static key and the org that it belongs to.
#[derive(Debug, Clone)]
pub struct StaticKey {
    hash: [u8; 32],
    /// Name of the org. `None`: the first one.
    org: Option<String>,
    cached: Arc<Mutex<Option<(Instant, Org)>>>,
}

impl StaticKey {
    /// Takes a key of printable ASCII without spaces.
    pub fn new(secret: &str, org: Option<String>) -> Result<Self, Error> {
        let is_text = secret.bytes().all(|byte| byte.is_ascii_graphic());
        if secret.is_empty() || secret.len() > MAX_LEN || !is_text {
            let message =
                "the static key is empty, too long, or has other characters than printable ASCII";
            let remedy = format!("write a key of 1 to {MAX_LEN} characters into the file");
            return Err(Error::invalid("static-key-file", message, remedy));
        }
        Ok(Self {
            hash: Sha256::digest(secret.as_bytes()).into(),
            org,
            cached: Arc::default(),
        })
    }

    /// Compares a text with the key in constant time.
    fn is(&self, text: &str) -> bool {
        let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        hash.ct_eq(&self.hash).into()
    }

    /// An id for rate limits and logs, derived from the key.
    fn id(&self) -> Result<KeyId, Error> {
        format!("key_{}", &hex(&self.hash)[..20]).parse()
    }
}

impl Core {
    /// Whether a text is the static key or has the form of an API key.
    pub fn is_api_key(&self, text: &str) -> bool {
        is_key(text) || self.is_static_key(text)
    }

    /// Whether a text is the static key.
    pub(crate) fn is_static_key(&self, text: &str) -> bool {
        let key = self.inner.static_key.as_ref();
        key.is_some_and(|key| key.is(text))
    }

    /// The caller with the static key. `None` if the secret is another one.
    pub(crate) async fn authenticate_static(
        &self,
        secret: &str,
        request: RequestId,
    ) -> Result<Option<RequestContext>, Error> {
        let Some(key) = self.inner.static_key.as_ref().filter(|key| key.is(secret)) else {
            return Ok(None);
        };
        let id = key.id()?;
        if let Some(rate) = &self.inner.rate {
            rate.check(&id)?;
        }
        Ok(Some(RequestContext {
            org: self.static_org(key).await?,
            key: Some(id),
            scope: Scope::Sandboxes,
            expires_at: None,
            request,
        }))
    }

    async fn static_org(&self, key: &StaticKey) -> Result<Org, Error> {
        let cached = lock(&key.cached).clone();
        if let Some((since, org)) = &cached
            && since.elapsed() < CACHE_TTL
        {
            return Ok(org.clone());
        }
        let found = match &key.org {
            None => self.first_org().await.map(Some),
            Some(name) => match self.inner.store.orgs().await {
                Ok(orgs) => Ok(orgs.into_iter().find(|org| org.name == *name)),
                Err(failure) => Err(error::store(failure)),
            },
        };
        match (found, cached) {
            (Ok(Some(org)), _) => {
                *lock(&key.cached) = Some((Instant::now(), org.clone()));
                Ok(org)
            }
            (Ok(None), _) => Err(Error::new(
                Code::InvalidApiKey,
                "the org of the static key does not exist",
            )
            .remedy("create it on the server's machine: atoll org create NAME")),
            // The store is unavailable: the last known org applies.
            (Err(_), Some((_, org))) => Ok(org),
            (Err(failure), None) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_text_is_the_static_key() {
        let key = StaticKey::new("test-key", None).expect("a valid key");
        assert!(key.is("test-key"));
        for other in ["", "test-ke", "test-key ", "Test-key", "test-key\n"] {
            assert!(!key.is(other), "{other:?}");
        }
        assert!(key.id().is_ok());
    }

    #[test]
    fn invalid_static_keys_are_rejected() {
        for bad in ["", "two words", "ä", "line\n", &"x".repeat(MAX_LEN + 1)] {
            assert!(StaticKey::new(bad, None).is_err(), "{bad:?}");
        }
    }
}
