//! From a policy to elements of the table's sets. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use atoll_model::{Policy, Rule, Verdict};

/// A set of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::network) enum Set {
    Allow,
    AllowPort,
    Deny,
    DenyPort,
}

impl Set {
    /// Its name in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::AllowPort => "allow_port",
            Self::Deny => "deny",
            Self::DenyPort => "deny_port",
        }
    }
}

/// A sandbox and some addresses at the other end, with a port or with all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::network) struct Element {
    pub(super) set: Set,
    sandbox: Ipv4Addr,
    first: u32,
    last: u32,
    port: Option<u16>,
}

impl Element {
    /// Its lowest and its highest key as the kernel has them: each field filled up to 4 bytes.
    pub(super) fn bounds(&self) -> (Vec<u8>, Vec<u8>) {
        let key = |remote: u32| {
            let mut key = self.sandbox.octets().to_vec();
            key.extend(remote.to_be_bytes());
            if let Some(port) = self.port {
                key.extend(port.to_be_bytes());
                key.extend([0, 0]);
            }
            key
        };
        (key(self.first), key(self.last))
    }
}

/// What a policy is in the table, ordered by set. The kernel refuses elements that overlap, so they
/// are joined. A sandbox whose policy forbids nothing has none.
pub(in crate::network) fn elements(sandbox: Ipv4Addr, policy: &Policy) -> Vec<Element> {
    if policy.is_open() {
        return Vec::new();
    }
    let everything = (0, u32::MAX);
    let mut all = Vec::new();
    for (rules, whole, of_port) in [
        (&policy.allow, Set::Allow, Set::AllowPort),
        (&policy.deny, Set::Deny, Set::DenyPort),
    ] {
        let mut by_port: BTreeMap<Option<u16>, Vec<(u32, u32)>> = BTreeMap::new();
        for Rule { to, port } in rules {
            let range = (to.first().to_bits(), to.last().to_bits());
            by_port.entry(*port).or_default().push(range);
        }
        if whole == Set::Deny && policy.default == Verdict::Deny {
            by_port.entry(None).or_default().push(everything);
        }
        for (port, ranges) in by_port {
            let set = if port.is_some() { of_port } else { whole };
            all.extend(joined(ranges).into_iter().map(|(first, last)| Element {
                set,
                sandbox,
                first,
                last,
                port,
            }));
        }
    }
    all
}

/// The same addresses in ranges that neither touch nor overlap.
fn joined(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allow: &[&str], deny: &[&str], default: Verdict) -> Vec<String> {
        let policy = Policy::parse(allow, deny, default).expect("a policy");
        let sandbox = Ipv4Addr::new(198, 18, 0, 9);
        let shown = elements(sandbox, &policy).into_iter().map(|element| {
            let address = Ipv4Addr::from_bits;
            let port = element
                .port
                .map_or(String::new(), |port| format!(":{port}"));
            let name = element.set.name();
            format!(
                "{name} {}-{}{port}",
                address(element.first),
                address(element.last)
            )
        });
        shown.collect()
    }

    #[test]
    fn what_forbids_nothing_needs_nothing() {
        assert!(check(&[], &[], Verdict::Allow).is_empty());
        assert!(check(&["1.1.1.1"], &[], Verdict::Allow).is_empty());
    }

    #[test]
    fn overlapping_and_touching_blocks_are_joined_port_by_port() {
        let shown = check(
            &[
                "1.1.1.1",
                "1.1.1.0/24",
                "1.1.2.0/24",
                "9.9.9.9:53",
                "9.9.9.0/24:53",
                "9.9.9.9:443",
            ],
            &["2.0.0.0/8", "2.2.2.2", "0.0.0.0/0:25"],
            Verdict::Allow,
        );
        let expected = [
            "allow 1.1.1.0-1.1.2.255",
            "allow_port 9.9.9.0-9.9.9.255:53",
            "allow_port 9.9.9.9-9.9.9.9:443",
            "deny 2.0.0.0-2.255.255.255",
            "deny_port 0.0.0.0-255.255.255.255:25",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn denying_by_default_denies_everything_else() {
        let shown = check(&["1.1.1.1"], &["2.2.2.2"], Verdict::Deny);
        assert_eq!(
            shown,
            ["allow 1.1.1.1-1.1.1.1", "deny 0.0.0.0-255.255.255.255"]
        );
    }
}
