//! Ranges of user and group ids, shared by all instances on a host and claimed as
//! [`claims`](crate::claims). They are above the ranges that systemd and `/etc/subuid` assign.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::Error;
use crate::claims::Claims;
use crate::plan::IdRange;

const FIRST: u32 = 0x7000_0000;
/// Number of ids in a range: all 16-bit ids.
pub const COUNT: u32 = 65536;
const RANGES: u32 = 0x0fff_0000 / COUNT;

/// This instance's ranges.
#[derive(Debug)]
pub struct Ranges(Claims);

impl Ranges {
    /// Opens the file of claims; creates it if it is missing.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Claims::open(path, RANGES).map(Self)
    }

    /// Claims a range that no instance on this host uses.
    pub fn claim(&self) -> Result<IdRange, Error> {
        match self.0.claim()? {
            Some(number) => Ok(IdRange {
                base: FIRST + number * COUNT,
                count: COUNT,
            }),
            None => Err(Error::Unsupported {
                feature: "another id range",
                why: format!("all {RANGES} ranges of this host are in use"),
                remedy: "delete sandboxes, or run atoll gc",
            }),
        }
    }

    /// The range that begins with an id; `None` if there is none.
    pub fn range_of(base: u32) -> Option<IdRange> {
        let ours = base >= FIRST && (base - FIRST).is_multiple_of(COUNT);
        let range = IdRange { base, count: COUNT };
        (ours && (base - FIRST) / COUNT < RANGES).then_some(range)
    }

    /// Continues the claims of an earlier server, with the open file description that its keeper held.
    pub fn take_over(file: OwnedFd) -> Self {
        Self(Claims::take_over(file, RANGES))
    }

    /// Adopts a range that was claimed with this open file description before.
    pub fn inherit(&self, range: IdRange) {
        self.0.inherit(range.base.saturating_sub(FIRST) / COUNT);
    }

    /// Releases claims of this open file that were not inherited.
    pub fn release_others(&self) {
        self.0.release_others();
    }

    /// Releases a range.
    pub fn release(&self, range: IdRange) {
        self.0.release((range.base - FIRST) / COUNT);
    }
}

impl AsFd for Ranges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_is_exclusive_until_release_or_end_of_its_holder() {
        let path = std::env::temp_dir().join(format!("atoll-ids-{}", std::process::id()));
        let (one, other) = (
            Ranges::open(&path).expect("open"),
            Ranges::open(&path).expect("open"),
        );
        let first = one.claim().expect("claim");
        let second = other.claim().expect("claim");
        let third = one.claim().expect("claim");
        assert!(first != second && second != third && first != third);
        one.release(first);
        assert_eq!(other.claim().expect("claim"), first);
        drop(other);
        assert_eq!(one.claim().expect("claim"), first);
        std::fs::remove_file(path).expect("remove");
    }

    #[test]
    fn takeover_releases_claims_that_are_not_inherited() {
        let path = std::env::temp_dir().join(format!("atoll-ids-left-{}", std::process::id()));
        let (one, other) = (
            Ranges::open(&path).expect("open"),
            Ranges::open(&path).expect("open"),
        );
        let [first, second, third, fourth] = [(); 4].map(|()| one.claim().expect("claim"));
        let next = Ranges::take_over(one.as_fd().try_clone_to_owned().expect("copy"));
        next.inherit(second);
        next.inherit(fourth);
        next.release_others();
        assert_eq!(other.claim().expect("claim"), first);
        assert_eq!(other.claim().expect("claim"), third);
        let fifth = other.claim().expect("claim");
        assert!(fifth.base > fourth.base, "{fifth:?} is {fourth:?}");
        std::fs::remove_file(path).expect("remove");
    }

    #[test]
    fn range_is_found_by_its_first_id() {
        let last = FIRST + (RANGES - 1) * COUNT;
        for base in [FIRST, FIRST + COUNT, last] {
            assert_eq!(Ranges::range_of(base).map(|range| range.base), Some(base));
        }
        for base in [0, FIRST - COUNT, FIRST + 1, last + COUNT] {
            assert_eq!(Ranges::range_of(base), None);
        }
    }
}
