//! Allocation of sandbox addresses, unique on the host.
//!
//! An instance claims blocks of 64 addresses by file locks, as it needs them, and keeps them until
//! it ends. A block is skipped while rules or links of another instance use an address in it: locks
//! end with a process, rules do not. A released address is reused after all others, so that traces
//! of its previous owner can disappear. Claims of a killed server survive in its keeper, and the
//! next server inherits those that are in use.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use atoll_jail::claims::Claims;
use atoll_model::{Code, Error, SANDBOX_RANGE};

use crate::error::jail;
use crate::sync::lock;

const BLOCK_SIZE: u32 = 64;
const BLOCKS: u32 = (1 << 17) / BLOCK_SIZE;

/// Claimed blocks and free addresses of an instance.
#[derive(Debug)]
pub(super) struct Addresses {
    claims: Claims,
    free: Mutex<VecDeque<Ipv4Addr>>,
}

impl Addresses {
    /// Opens the claims file.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            claims: Claims::open(path, BLOCKS).map_err(|error| jail(&error))?,
            free: Mutex::default(),
        })
    }

    /// Inherits the claims of the open file that the keeper held.
    pub(super) fn from_inherited(file: OwnedFd) -> Self {
        Self {
            claims: Claims::take_over(file, BLOCKS),
            free: Mutex::default(),
        }
    }

    /// Marks these addresses as used and keeps their blocks; releases all other blocks.
    pub(super) fn inherit(&self, used: &BTreeSet<Ipv4Addr>) {
        let mut free = lock(&self.free);
        let blocks: BTreeSet<u32> = used
            .iter()
            .map(|address| address_index(*address) / BLOCK_SIZE)
            .collect();
        for block in blocks {
            self.claims.inherit(block);
            free.extend(addresses(block).filter(|address| !used.contains(address)));
        }
        self.claims.release_others();
    }

    /// Allocates an address. `is_in_use` tells whether rules or links of another instance use an
    /// address of a block.
    pub(super) fn allocate(
        &self,
        is_in_use: impl Fn(&RangeInclusive<Ipv4Addr>) -> Result<bool, Error>,
    ) -> Result<Ipv4Addr, Error> {
        let mut free = lock(&self.free);
        if let Some(address) = free.pop_front() {
            return Ok(address);
        }
        let is_free = |block| -> Result<bool, Failure> { Ok(!is_in_use(&range(block))?) };
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

    /// Releases all blocks. The kernel must not have rules or links with their addresses.
    pub(super) fn release_all(&self) {
        let mut free = lock(&self.free);
        free.clear();
        self.claims.release_all();
    }

    /// Releases an address that no rule and no link uses.
    pub(super) fn release(&self, address: Ipv4Addr) {
        let mut free = lock(&self.free);
        free.push_back(address);
    }
}

impl AsFd for Addresses {
    /// The open file whose locks are the claims.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.claims.as_fd()
    }
}

/// All addresses of a block.
fn range(block: u32) -> RangeInclusive<Ipv4Addr> {
    let first = SANDBOX_RANGE.first().to_bits() + block * BLOCK_SIZE;
    Ipv4Addr::from_bits(first)..=Ipv4Addr::from_bits(first + BLOCK_SIZE - 1)
}

/// The usable addresses of a block.
fn addresses(block: u32) -> impl Iterator<Item = Ipv4Addr> {
    let all = range(block);
    // Some programs treat .0 and .255 as network and broadcast addresses.
    let usable = (all.start().to_bits()..=all.end().to_bits())
        .filter(|bits| !matches!(bits & 0xff, 0 | 0xff));
    usable.map(Ipv4Addr::from_bits)
}

/// Error of a claim: of the claims file, or of `is_in_use`.
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

/// Index of an address in the sandbox range, which is the number in its link's name.
pub(super) fn address_index(address: Ipv4Addr) -> u32 {
    address.to_bits() - SANDBOX_RANGE.first().to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(
        clippy::unnecessary_wraps,
        reason = "the signature that allocate() expects"
    )]
    fn none(_: &RangeInclusive<Ipv4Addr>) -> Result<bool, Error> {
        Ok(false)
    }

    #[test]
    fn addresses_are_unique_and_released_ones_come_last() {
        let scratch = tempfile::tempdir().expect("directory");
        let path = scratch.path().join("addresses");
        let (one, other) = (Addresses::open(&path), Addresses::open(&path));
        let (one, other) = (one.expect("open"), other.expect("open"));
        let mut seen = BTreeSet::new();
        for _ in 0..150 {
            for instance in [&one, &other] {
                let address = instance.allocate(none).expect("an address");
                assert!(
                    SANDBOX_RANGE.contains(address) && seen.insert(address),
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
    fn inherited_claims_are_kept_if_used_and_released_otherwise() {
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
        let next = Addresses::from_inherited(held);
        next.inherit(&BTreeSet::from([first[69]]));
        let again: Vec<_> = (0..63)
            .map(|_| next.allocate(none).expect("an address"))
            .collect();
        assert!(!again.contains(&first[69]));
        assert!(
            again
                .iter()
                .all(|address| address_index(*address) / BLOCK_SIZE == 1)
        );
        let given_up = Addresses::open(&path).expect("open");
        assert_eq!(given_up.allocate(none).expect("an address"), first[0]);
    }

    #[test]
    fn block_in_rules_of_others_is_skipped_and_stays_free() {
        let scratch = tempfile::tempdir().expect("directory");
        let path = scratch.path().join("addresses");
        let one = Addresses::open(&path).expect("open");
        let stale = Ipv4Addr::new(198, 18, 0, 1);
        let named = |block: &RangeInclusive<Ipv4Addr>| Ok(block.contains(&stale));
        let address = one.allocate(named).expect("an address");
        assert_eq!(address_index(address) / BLOCK_SIZE, 1);
        let other = Addresses::open(&path).expect("open");
        assert_eq!(other.allocate(none).expect("an address"), stale);
    }

    #[test]
    fn released_blocks_are_free_while_a_keeper_has_the_file_open() {
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
