//! How many requests a key may send, and how many a sandbox is sent by who has its token: a bucket for each, which
//! fills by so many a second and holds as many.

use std::num::NonZeroU32;
use std::sync::OnceLock;

use atoll_model::{Code, Error, KeyId};
use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// The buckets of all keys.
#[derive(Debug)]
pub(crate) struct Limit {
    buckets: RateLimiter<KeyId, HashMapStateStore<KeyId>, DefaultClock>,
    most: NonZeroU32,
}

/// The bucket of one sandbox, which goes with it.
#[derive(Debug, Default)]
pub(crate) struct Bucket(OnceLock<DefaultDirectRateLimiter>);

impl Limit {
    pub(crate) fn new(most: NonZeroU32) -> Self {
        Self {
            buckets: RateLimiter::hashmap(Quota::per_second(most)),
            most,
        }
    }

    /// Counts a request of a key that is known, or refuses it. What is refused does not count.
    pub(crate) fn check(&self, key: &KeyId) -> Result<(), Error> {
        match self.buckets.check_key(key) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.refusal("this key may send")),
        }
    }

    /// Counts a request to a sandbox, or refuses it.
    pub(crate) fn check_sandbox(&self, bucket: &Bucket) -> Result<(), Error> {
        let new = || RateLimiter::direct(Quota::per_second(self.most));
        match bucket.0.get_or_init(new).check() {
            Ok(()) => Ok(()),
            Err(_) => Err(self.refusal("this sandbox may be sent")),
        }
    }

    fn refusal(&self, who: &str) -> Error {
        let most = self.most.to_string();
        Error::new(
            Code::RateLimited,
            format!("{who} {most} requests a second, and more came"),
        )
        .remedy("wait a second; send less, or have the server's --rate-limit raised")
        .detail("max", most)
    }
}
