//! Rate limits per API key, per sandbox (for requests with an access token) and per client address (for signature
//! searches).
//!
//! Each is a token bucket whose capacity is one second of its rate. Limits are per process and kept in memory.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use atoll_model::{Code, Error, KeyId};
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Searches per second and client address. A page with many images needs fewer.
const SEARCHES: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);
/// Number of checks after which full buckets are dropped.
const SWEEP: u32 = 10_000;

/// Buckets of all recently used keys.
#[derive(Debug)]
struct Buckets<K: Hash + Eq + Clone> {
    limiter: RateLimiter<K, HashMapStateStore<K>, DefaultClock>,
    checks: AtomicU32,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    fn new(max_per_second: NonZeroU32) -> Self {
        Self {
            limiter: RateLimiter::hashmap(Quota::per_second(max_per_second)),
            checks: AtomicU32::new(0),
        }
    }

    /// Takes a token from the bucket of a key. Returns false if it is empty.
    fn allows(&self, key: &K) -> bool {
        if self.checks.fetch_add(1, Ordering::Relaxed) % SWEEP == SWEEP - 1 {
            self.limiter.retain_recent();
        }
        self.limiter.check_key(key).is_ok()
    }
}

/// Rate limit of searches for the sandbox of a signature.
#[derive(Debug)]
pub(crate) struct SearchRateLimit(Buckets<IpAddr>);

impl Default for SearchRateLimit {
    fn default() -> Self {
        Self(Buckets::new(SEARCHES))
    }
}

impl SearchRateLimit {
    /// Returns 429 if the client exceeds the limit.
    pub(crate) fn check(&self, client: IpAddr) -> Result<(), Error> {
        if self.0.allows(&network(client)) {
            return Ok(());
        }
        let message = format!(
            "more than {SEARCHES} signed links without a sandbox id came from this address in a second"
        );
        Err(Error::new(Code::RateLimited, message).remedy(
            "wait a second; or name the sandbox, by the header E2b-Sandbox-Id or the host 49983-ID.DOMAIN",
        ))
    }
}

/// The network that counts as one client: an IPv4 address or an IPv6 /64.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Rate limit per key and per sandbox.
#[derive(Debug)]
pub(crate) struct RateLimits {
    buckets: Buckets<KeyId>,
    max_per_second: NonZeroU32,
}

/// Bucket of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Bucket(OnceLock<DefaultDirectRateLimiter>);

impl RateLimits {
    pub(crate) fn new(max_per_second: NonZeroU32) -> Self {
        Self {
            buckets: Buckets::new(max_per_second),
            max_per_second,
        }
    }

    /// Returns 429 if the key exceeds the limit. Rejected requests do not count.
    pub(crate) fn check(&self, key: &KeyId) -> Result<(), Error> {
        if self.buckets.allows(key) {
            return Ok(());
        }
        Err(self.exceeded_error("requests with this key"))
    }

    /// Returns 429 if requests to the sandbox exceed the limit.
    pub(crate) fn check_sandbox(&self, bucket: &Bucket) -> Result<(), Error> {
        let new = || RateLimiter::direct(Quota::per_second(self.max_per_second));
        match bucket.0.get_or_init(new).check() {
            Ok(()) => Ok(()),
            Err(_) => Err(self.exceeded_error("requests to this sandbox")),
        }
    }

    fn exceeded_error(&self, subject: &str) -> Error {
        let max = self.max_per_second.to_string();
        Error::new(
            Code::RateLimited,
            format!("{subject} exceed the limit of {max} per second"),
        )
        .remedy("wait the seconds of Retry-After and send fewer requests, or have the server's operator raise rate-limit")
        .detail("max", max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_limit_is_per_client() {
        let limit = SearchRateLimit::default();
        let client = |text: &str| text.parse::<IpAddr>().expect("an address");
        while limit.check(client("192.0.2.1")).is_ok() {}
        assert!(limit.check(client("192.0.2.2")).is_ok());
        // All addresses of one IPv6 /64 are the same client.
        for (address, block) in [
            ("2001:db8::1", "2001:db8::"),
            ("2001:db8:0:1:2::", "2001:db8:0:1::"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(network(client(address)), client(block));
        }
    }

    #[test]
    fn full_buckets_are_dropped() {
        let buckets = Buckets::<u32>::new(NonZeroU32::MIN.saturating_add(999_999));
        for key in 0..3 * SWEEP {
            buckets.allows(&key);
        }
        assert!(buckets.limiter.len() <= SWEEP as usize);
    }
}
