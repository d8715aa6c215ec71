//! Compiles a policy into set elements. Pure.

use std::collections::BTreeMap;

use atoll_model::{NetworkPolicy, NetworkRule, PolicyAction};

/// Ranges of remote addresses and ports, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddressPortRange {
    addresses: (u32, u32),
    ports: (u16, u16),
}

impl AddressPortRange {
    /// First and last key in the kernel's layout: each field padded to 4 bytes.
    pub(super) fn bounds(self) -> [[u8; 8]; 2] {
        let key = |address: u32, port: u16| {
            let mut key = [0; 8];
            key[..4].copy_from_slice(&address.to_be_bytes());
            key[4..6].copy_from_slice(&port.to_be_bytes());
            key
        };
        [
            key(self.addresses.0, self.ports.0),
            key(self.addresses.1, self.ports.1),
        ]
    }
}

/// A policy as sets without overlapping elements; empty if it forbids nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::network) struct Compiled {
    pub(super) allow: Vec<AddressPortRange>,
    pub(super) deny: Vec<AddressPortRange>,
}

impl Compiled {
    /// Compiles a policy.
    pub(in crate::network) fn new(policy: &NetworkPolicy) -> Self {
        if policy.allows_all() {
            return Self::default();
        }
        let everything = match policy.default {
            PolicyAction::Deny => vec![(0, u32::MAX)],
            PolicyAction::Allow => Vec::new(),
        };
        Self {
            allow: ranges(&policy.allow, Vec::new()),
            deny: ranges(&policy.deny, everything),
        }
    }

    /// Whether the policy forbids nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.deny.is_empty()
    }
}

/// Elements of a set. The kernel rejects overlapping ones, so ranges for all ports are merged, and
/// cut out of the ranges for single ports.
fn ranges(rules: &[NetworkRule], mut whole: Vec<(u32, u32)>) -> Vec<AddressPortRange> {
    let mut by_port: BTreeMap<u16, Vec<(u32, u32)>> = BTreeMap::new();
    for NetworkRule { to, port } in rules {
        let range = (to.first().to_bits(), to.last().to_bits());
        match port {
            Some(port) => by_port.entry(*port).or_default().push(range),
            None => whole.push(range),
        }
    }
    let whole = merge(whole);
    let range = |ports| move |addresses| AddressPortRange { addresses, ports };
    let mut all: Vec<AddressPortRange> = whole.iter().copied().map(range((0, u16::MAX))).collect();
    for (port, ranges) in by_port {
        let rest = merge(ranges)
            .into_iter()
            .flat_map(|range| subtract(range, &whole));
        all.extend(rest.map(range((port, port))));
    }
    all
}

/// Merges ranges that touch or overlap.
fn merge(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Subtracts sorted ranges from a range.
fn subtract((mut first, last): (u32, u32), others: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut left = Vec::new();
    for &(from, to) in others {
        if to < first || from > last {
            continue;
        }
        if from > first {
            left.push((first, from - 1));
        }
        match to.checked_add(1) {
            Some(next) => first = next,
            None => return left,
        }
    }
    if first <= last {
        left.push((first, last));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn check(allow: &[&str], deny: &[&str], default: PolicyAction) -> Vec<String> {
        let policy = NetworkPolicy::parse(allow, deny, default).expect("a policy");
        let Compiled { allow, deny } = Compiled::new(&policy);
        let show = |name: &str, ranges: Vec<AddressPortRange>| {
            let lines = ranges.into_iter().map(|area| {
                let (first, last) = area.addresses;
                let [first, last] = [first, last].map(Ipv4Addr::from_bits);
                let (low, high) = area.ports;
                format!("{name} {first}-{last} {low}-{high}")
            });
            lines.collect::<Vec<_>>()
        };
        [show("allow", allow), show("deny", deny)].concat()
    }

    #[test]
    fn policy_that_forbids_nothing_is_empty() {
        assert!(check(&[], &[], PolicyAction::Allow).is_empty());
        assert!(check(&["1.1.1.1"], &[], PolicyAction::Allow).is_empty());
    }

    #[test]
    fn overlapping_and_touching_ranges_are_merged_by_port() {
        let shown = check(
            &[
                "1.1.1.1",
                "1.1.1.0/24",
                "1.1.2.0/24",
                "9.9.9.9:53",
                "9.9.9.0/24:53",
                "9.9.9.9:443",
                "1.1.0.0/16:443",
            ],
            &["2.0.0.0/8", "2.2.2.2", "2.2.2.2:1", "0.0.0.0/0:25"],
            PolicyAction::Allow,
        );
        let expected = [
            "allow 1.1.1.0-1.1.2.255 0-65535",
            "allow 9.9.9.0-9.9.9.255 53-53",
            "allow 1.1.0.0-1.1.0.255 443-443",
            "allow 1.1.3.0-1.1.255.255 443-443",
            "allow 9.9.9.9-9.9.9.9 443-443",
            "deny 2.0.0.0-2.255.255.255 0-65535",
            "deny 0.0.0.0-1.255.255.255 25-25",
            "deny 3.0.0.0-255.255.255.255 25-25",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn default_deny_denies_everything_else() {
        let shown = check(&["1.1.1.1"], &["2.2.2.2", "3.3.3.3:1"], PolicyAction::Deny);
        let expected = [
            "allow 1.1.1.1-1.1.1.1 0-65535",
            "deny 0.0.0.0-255.255.255.255 0-65535",
        ];
        assert_eq!(shown, expected);
    }
}
