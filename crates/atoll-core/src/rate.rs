//! How many requests a key may send: a bucket for each, which fills by so many a second and holds as many.

use std::num::NonZeroU32;

use atoll_model::{Code, Error, KeyId};
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

/// The buckets of all keys.
#[derive(Debug)]
pub(crate) struct Limit {
    buckets: RateLimiter<KeyId, HashMapStateStore<KeyId>, DefaultClock>,
    most: NonZeroU32,
}

impl Limit {
    pub(crate) fn new(most: NonZeroU32) -> Self {
        Self {
            buckets: RateLimiter::hashmap(Quota::per_second(most)),
            most,
        }
    }

    /// Counts a request of a key that is known, or refuses it. What is refused does not count.
    pub(crate) fn check(&self, key: &KeyId) -> Result<(), Error> {
        if self.buckets.check_key(key).is_ok() {
            return Ok(());
        }
        let most = self.most.to_string();
        Err(Error::new(
            Code::RateLimited,
            format!("this key may send {most} requests a second and sent more"),
        )
        .remedy("wait a second; send less, or have the server's --rate-limit raised")
        .detail("max", most))
    }
}
