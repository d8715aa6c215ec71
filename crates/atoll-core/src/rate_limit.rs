//! Rate limits: how many requests a key may send, how many a sandbox is sent with its token, and how often one address
//! may have the server search for the sandbox of a signature. Each has a bucket that fills by so many a second and holds
//! as many.

use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use atoll_model::{Code, Error, KeyId};
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Searches a second for one address: more than a page with many images needs at once.
const SEARCHES: NonZeroU32 = NonZeroU32::MIN.saturating_add(199);
/// After so many checks the buckets that are full again are dropped.
const SWEEP: u32 = 10_000;

/// A bucket for each key, for those that were used lately.
#[derive(Debug)]
struct Buckets<K: Hash + Eq + Clone> {
    limiter: RateLimiter<K, HashMapStateStore<K>, DefaultClock>,
    checks: AtomicU32,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    fn new(most: NonZeroU32) -> Self {
        Self {
            limiter: RateLimiter::hashmap(Quota::per_second(most)),
            checks: AtomicU32::new(0),
        }
    }

    /// Counts a request, unless there are too many.
    fn allows(&self, key: &K) -> bool {
        if self.checks.fetch_add(1, Ordering::Relaxed) % SWEEP == SWEEP - 1 {
            self.limiter.retain_recent();
        }
        self.limiter.check_key(key).is_ok()
    }
}

/// The limit on searches for the sandbox of a signature.
#[derive(Debug)]
pub(crate) struct SearchRateLimit(Buckets<IpAddr>);

impl Default for SearchRateLimit {
    fn default() -> Self {
        Self(Buckets::new(SEARCHES))
    }
}

impl SearchRateLimit {
    /// Counts a search for a client at an address, or refuses it.
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

/// The block of addresses that one client has: of IPv6 usually a /64.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// The buckets of all keys.
#[derive(Debug)]
pub(crate) struct RateLimits {
    buckets: Buckets<KeyId>,
    most: NonZeroU32,
}

/// The bucket of one sandbox, which goes with it.
#[derive(Debug, Default)]
pub(crate) struct Bucket(OnceLock<DefaultDirectRateLimiter>);

impl RateLimits {
    pub(crate) fn new(most: NonZeroU32) -> Self {
        Self {
            buckets: Buckets::new(most),
            most,
        }
    }

    /// Counts a request of a key that is known, or refuses it. What is refused does not count.
    pub(crate) fn check(&self, key: &KeyId) -> Result<(), Error> {
        if self.buckets.allows(key) {
            return Ok(());
        }
        Err(self.exceeded_error("this key may send"))
    }

    /// Counts a request to a sandbox, or refuses it.
    pub(crate) fn check_sandbox(&self, bucket: &Bucket) -> Result<(), Error> {
        let new = || RateLimiter::direct(Quota::per_second(self.most));
        match bucket.0.get_or_init(new).check() {
            Ok(()) => Ok(()),
            Err(_) => Err(self.exceeded_error("this sandbox may be sent")),
        }
    }

    fn exceeded_error(&self, who: &str) -> Error {
        let most = self.most.to_string();
        Error::new(
            Code::RateLimited,
            format!("{who} {most} requests a second, and more came"),
        )
        .remedy("wait the seconds of Retry-After and send fewer requests, or have the server's operator raise rate-limit")
        .detail("max", most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_is_limited_and_others_are_not() {
        let limit = SearchRateLimit::default();
        let client = |text: &str| text.parse::<IpAddr>().expect("an address");
        while limit.check(client("192.0.2.1")).is_ok() {}
        assert!(limit.check(client("192.0.2.2")).is_ok());
        // Any address of one IPv6 network is the same client.
        for (address, block) in [
            ("2001:db8::1", "2001:db8::"),
            ("2001:db8:0:1:2::", "2001:db8:0:1::"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(network(client(address)), client(block));
        }
    }

    #[test]
    fn buckets_that_are_full_again_are_dropped() {
        let buckets = Buckets::<u32>::new(NonZeroU32::MIN.saturating_add(999_999));
        for key in 0..3 * SWEEP {
            buckets.allows(&key);
        }
        assert!(buckets.limiter.len() <= SWEEP as usize);
    }
}
