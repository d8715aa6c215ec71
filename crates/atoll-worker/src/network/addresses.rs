//! Addresses of sandboxes, so that no two on a host have the same.
//!
//! An instance claims blocks of 64 by locks, as it needs them, and keeps them to its end. A block is passed over
//! while rules or links of another instance name an address in it: its locks end with its processes, its rules do
//! not. An address that was given back is used again only after all the others, so that what belonged to its former
//! owner has time to go away. Claims of a server that was killed live on with its keeper, and the
//! next server goes on with those that are in use.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use atoll_jail::claims::Claims;
use atoll_model::{Code, Error, SANDBOXES};

use crate::error::jail;

const BLOCK: u32 = 64;
const BLOCKS: u32 = (1 << 17) / BLOCK;

/// The addresses of an instance.
#[derive(Debug)]
pub(super) struct Addresses {
    claims: Claims,
    free: Mutex<VecDeque<Ipv4Addr>>,
}

impl Addresses {
    /// Opens the file of claims.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            claims: Claims::open(path, BLOCKS).map_err(|error| jail(&error))?,
            free: Mutex::default(),
        })
    }

    /// Goes on with claims over the open file that a keeper held.
    pub(super) fn take_over(file: OwnedFd) -> Self {
        Self {
            claims: Claims::take_over(file, BLOCKS),
            free: Mutex::default(),
        }
    }

    /// Takes these again, which were taken over the same open file, with the blocks they are in.
    /// Other blocks are given up.
    pub(super) fn inherit(&self, used: &BTreeSet<Ipv4Addr>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks: BTreeSet<u32> = used
            .iter()
            .map(|address| number(*address) / BLOCK)
            .collect();
        for block in blocks {
            self.claims.inherit(block);
            free.extend(addresses(block).filter(|address| !used.contains(address)));
        }
        self.claims.release_others();
    }

    /// Returns an address that no sandbox has. `is_named` says whether the kernel has rules or links of another instance
    /// for any address of a block.
    pub(super) fn allocate(
        &self,
        is_named: impl Fn(&RangeInclusive<Ipv4Addr>) -> Result<bool, Error>,
    ) -> Result<Ipv4Addr, Error> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = free.pop_front() {
            return Ok(address);
        }
        let is_free = |block| -> Result<bool, Failure> { Ok(!is_named(&range(block))?) };
        let Some(block) = self
            .claims
            .claim_if(is_free)
            .map_err(|Failure(error)| error)?
        else {
            return Err(Error::new(
                Code::NoCapacity,
                "all addresses for sandboxes of this host are in use",
            )
            .remedy("delete sandboxes, or run atoll gc"));
        };
        free.extend(addresses(block));
        free.pop_front()
            .ok_or_else(|| Error::new(Code::Internal, "a block of addresses has no usable address"))
    }

    /// Releases all blocks. Nothing in the kernel may name their addresses any more.
    pub(super) fn release_all(&self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.clear();
        self.claims.release_all();
    }

    /// Takes one back, when nothing in the kernel has it any more.
    pub(super) fn release(&self, address: Ipv4Addr) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push_back(address);
    }
}

impl AsFd for Addresses {
    /// What holds the claims.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.claims.as_fd()
    }
}

/// All addresses of a block.
fn range(block: u32) -> RangeInclusive<Ipv4Addr> {
    let first = SANDBOXES.first().to_bits() + block * BLOCK;
    Ipv4Addr::from_bits(first)..=Ipv4Addr::from_bits(first + BLOCK - 1)
}

/// The usable addresses of a block.
fn addresses(block: u32) -> impl Iterator<Item = Ipv4Addr> {
    let all = range(block);
    // Some programs take these two for something else than an address.
    let usable = (all.start().to_bits()..=all.end().to_bits())
        .filter(|bits| !matches!(bits & 0xff, 0 | 0xff));
    usable.map(Ipv4Addr::from_bits)
}

/// The error of a claim: from the file of claims, or from looking into the kernel.
struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<atoll_jail::Error> for Failure {
    fn from(error: atoll_jail::Error) -> Self {
        Self(jail(&error))
    }
}

/// Where an address is among all of them: the number in its link's name.
pub(super) fn number(address: Ipv4Addr) -> u32 {
    address.to_bits() - SANDBOXES.first().to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(
        clippy::unnecessary_wraps,
        reason = "the signature that allocate() wants"
    )]
    fn none(_: &RangeInclusive<Ipv4Addr>) -> Result<bool, Error> {
        Ok(false)
    }

    #[test]
    fn no_address_is_given_twice_and_a_returned_one_comes_last() {
        let scratch = tempfile::tempdir().expect("directory");
        let path = scratch.path().join("addresses");
        let (one, other) = (Addresses::open(&path), Addresses::open(&path));
        let (one, other) = (one.expect("open"), other.expect("open"));
        let mut seen = BTreeSet::new();
        for _ in 0..150 {
            for instance in [&one, &other] {
                let address = instance.allocate(none).expect("an address");
                assert!(
                    SANDBOXES.contains(address) && seen.insert(address),
                    "{address}"
                );
                assert!(!matches!(address.octets()[3], 0 | 255));
            }
        }
        let back = *seen.first().expect("some");
        one.release(back);
        assert_ne!(one.allocate(none).expect("an address"), back);
    }

    #[test]
    fn claims_that_somebody_held_are_gone_on_with_and_the_rest_given_up() {
        let scratch = tempfile::tempdir().expect("directory");
        let path = scratch.path().join("addresses");
        let one = Addresses::open(&path).expect("open");
        let first: Vec<_> = (0..70)
            .map(|_| one.allocate(none).expect("an address"))
            .collect();
        let held = one.as_fd().try_clone_to_owned().expect("a copy");
        drop(one);
        let other = Addresses::open(&path).expect("open");
        assert!(!first.contains(&other.allocate(none).expect("an address")));
        let next = Addresses::take_over(held);
        next.inherit(&BTreeSet::from([first[69]]));
        let again: Vec<_> = (0..63)
            .map(|_| next.allocate(none).expect("an address"))
            .collect();
        assert!(!again.contains(&first[69]));
        assert!(again.iter().all(|address| number(*address) / BLOCK == 1));
        let given_up = Addresses::open(&path).expect("open");
        assert_eq!(given_up.allocate(none).expect("an address"), first[0]);
    }

    #[test]
    fn a_block_that_other_rules_name_is_passed_over_and_stays_free() {
        let scratch = tempfile::tempdir().expect("directory");
        let path = scratch.path().join("addresses");
        let one = Addresses::open(&path).expect("open");
        let stale = Ipv4Addr::new(198, 18, 0, 1);
        let named = |block: &RangeInclusive<Ipv4Addr>| Ok(block.contains(&stale));
        let address = one.allocate(named).expect("an address");
        assert_eq!(number(address) / BLOCK, 1);
        let other = Addresses::open(&path).expect("open");
        assert_eq!(other.allocate(none).expect("an address"), stale);
    }

    #[test]
    fn released_blocks_are_free_although_a_keeper_has_the_file_open() {
        let scratch = tempfile::tempdir().expect("directory");
        let path = scratch.path().join("addresses");
        let one = Addresses::open(&path).expect("open");
        let _keeper = one.as_fd().try_clone_to_owned().expect("a copy");
        let address = one.allocate(none).expect("an address");
        one.release_all();
        let other = Addresses::open(&path).expect("open");
        assert_eq!(other.allocate(none).expect("an address"), address);
    }
}
