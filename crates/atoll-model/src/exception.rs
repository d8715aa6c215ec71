//! Egress exceptions: blocked address ranges that the operator opens to sandboxes.
//!
//! An exception never covers loopback, addresses of sandboxes or gateways, multicast or reserved addresses. The host's
//! own addresses stay blocked even inside an exception, by the order of the firewall's rules.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::network::{Cidr, NetworkRule, SANDBOX_RANGE, digits, is_blocked};

/// Ranges that no exception may overlap, with the reason.
const NEVER_ALLOWED: [(Cidr, &str); 5] = [
    (Cidr::new([0, 0, 0, 0], 8), "this host"),
    (Cidr::new([127, 0, 0, 0], 8), "loopback"),
    (SANDBOX_RANGE, "sandboxes and their gateways"),
    (Cidr::new([224, 0, 0, 0], 4), "multicast"),
    (Cidr::new([240, 0, 0, 0], 4), "reserved"),
];

/// Cloud metadata services, which return credentials of the host. An exception must name such an address alone.
const METADATA: [Ipv4Addr; 2] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// First and last port of a range, inclusive.
type Ports = (u16, u16);

/// A range of addresses that the operator opens, on some ports or on all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EgressException {
    to: Cidr,
    /// TCP and UDP ports, ascending and disjoint. Empty: all ports, and ICMP.
    ports: Vec<Ports>,
}

impl EgressException {
    /// The address range.
    pub fn cidr(&self) -> Cidr {
        self.to
    }

    /// Ranges of TCP and UDP ports, ascending and disjoint. Empty: all ports, and ICMP.
    pub fn ports(&self) -> &[(u16, u16)] {
        &self.ports
    }

    /// Whether the exception and a rule have an address and a port in common.
    fn overlaps(&self, rule: &NetworkRule) -> bool {
        let open = |port| {
            let mut ranges = self.ports.iter();
            self.ports.is_empty() || ranges.any(|(first, last)| (*first..=*last).contains(&port))
        };
        self.to.overlaps(rule.to) && rule.port.is_none_or(open)
    }

    fn check(&self, text: &str) -> Result<(), Error> {
        let reject = |message: String, remedy: &str| Err(invalid(message, remedy));
        let conflict = NEVER_ALLOWED
            .iter()
            .find(|(cidr, _)| cidr.overlaps(self.to));
        if let Some((cidr, reason)) = conflict {
            let message = format!("{text:?} overlaps {cidr} ({reason}), which is never opened");
            return reject(message, "name only the addresses that sandboxes need");
        }
        let metadata = METADATA.iter().find(|address| self.to.contains(**address));
        if let Some(address) = metadata
            && self.to.first() != self.to.last()
        {
            let message = format!(
                "{text:?} covers {address}, a cloud metadata service that returns credentials of the host"
            );
            return reject(message, "name smaller blocks without that address");
        }
        Ok(())
    }
}

/// Whether an address is blocked for sandboxes on all ports, given these exceptions.
pub fn is_blocked_except(address: Ipv4Addr, exceptions: &[EgressException]) -> bool {
    is_blocked(address) && !exceptions.iter().any(|it| it.to.contains(address))
}

/// Whether an exception opens at least one address and port of a rule.
pub(crate) fn overlap(exceptions: &[EgressException], rule: &NetworkRule) -> bool {
    exceptions.iter().any(|it| it.overlaps(rule))
}

fn invalid(message: String, remedy: &str) -> Error {
    Error::invalid("egress-allow", message, remedy)
}

impl FromStr for EgressException {
    type Err = Error;

    /// Parses `10.1.2.3` or `10.1.0.0/16`, optionally with ports: `10.1.2.3:443`, `10.1.0.0/16:80,443,8000-8099`.
    fn from_str(text: &str) -> Result<Self, Error> {
        const FORM: &str = "write it like 10.1.2.3, 10.1.0.0/16 or 10.1.2.3:443,8000-8099";
        if text.starts_with('[') || text.matches(':').count() > 1 {
            let message = format!("{text:?} is IPv6, and sandboxes have IPv4 only");
            return Err(invalid(message, "name the IPv4 address of the service"));
        }
        let missing = |part: &str| invalid(format!("{text:?} has no valid {part}"), FORM);
        let (cidr, ports) = match text.split_once(':') {
            Some((cidr, ports)) => {
                let ranges: Option<Vec<Ports>> = ports.split(',').map(range).collect();
                (cidr, merge(ranges.ok_or_else(|| missing("ports"))?))
            }
            None => (text, Vec::new()),
        };
        let to = Cidr::parse(cidr).ok_or_else(|| missing("IPv4 address or block"))?;
        if let Some(aligned) = to.realigned() {
            let message = format!("{text:?} has address bits beyond its prefix length");
            return Err(invalid(message, &format!("write {aligned} for the block")));
        }
        let exception = Self { to, ports };
        exception.check(text)?;
        Ok(exception)
    }
}

/// Parses `443` or `8000-8099`.
fn range(text: &str) -> Option<Ports> {
    let port = |text| digits::<u16>(text).filter(|port| *port != 0);
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    (first <= last).then_some((first, last))
}

/// Sorts and merges port ranges: the firewall requires ascending, disjoint ranges.
fn merge(mut ranges: Vec<Ports>) -> Vec<Ports> {
    ranges.sort_unstable();
    let mut merged: Vec<Ports> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

impl fmt::Display for EgressException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        for (index, (first, last)) in self.ports.iter().enumerate() {
            f.write_str(if index == 0 { ":" } else { "," })?;
            write!(f, "{first}")?;
            if first != last {
                write!(f, "-{last}")?;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for EgressException {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<EgressException> for String {
    fn from(exception: EgressException) -> Self {
        exception.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NetworkPolicy, PolicyAction};

    fn exception(text: &str) -> EgressException {
        text.parse().expect(text)
    }

    #[test]
    fn exception_parses_range_and_ports() {
        for (text, shown) in [
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("10.0.0.0/8:443", "10.0.0.0/8:443"),
            ("10.1.2.3:8080,443,440-445,446", "10.1.2.3:440-446,8080"),
            ("192.168.0.0/16:1-65535", "192.168.0.0/16:1-65535"),
            ("169.254.169.254:80", "169.254.169.254:80"),
            ("1.1.1.1", "1.1.1.1"),
        ] {
            assert_eq!(exception(text).to_string(), shown);
        }
    }

    #[test]
    fn exception_that_is_never_allowed_is_an_error() {
        for (text, problem) in [
            ("127.0.0.1", "127.0.0.0/8 (loopback)"),
            ("0.0.0.0/0", "0.0.0.0/8 (this host)"),
            ("0.0.0.0", "0.0.0.0/8"),
            ("198.18.0.1:53", "198.18.0.0/15 (sandboxes"),
            ("198.0.0.0/8", "198.18.0.0/15"),
            ("224.0.0.251", "multicast"),
            ("255.255.255.255", "reserved"),
            ("169.254.0.0/16", "covers 169.254.169.254"),
            ("168.63.0.0/16:443", "covers 168.63.129.16"),
            ("::1", "IPv6"),
            ("fd00::/8", "IPv6"),
            ("[fd00::1]:443", "IPv6"),
            ("::ffff:10.0.0.1", "IPv6"),
            ("10.1.2.3/8", "beyond its prefix length"),
            ("10.0.0.0/33", "IPv4 address or block"),
            ("registry.example.com", "IPv4 address or block"),
            ("10.1.2.3:", "ports"),
            ("10.1.2.3:0", "ports"),
            ("10.1.2.3:443,", "ports"),
            ("10.1.2.3:9-8", "ports"),
            ("10.1.2.3:65536", "ports"),
            ("", "IPv4 address or block"),
        ] {
            let error = text.parse::<EgressException>().expect_err(text);
            assert!(error.message.contains(problem), "{text}: {}", error.message);
            assert!(error.remedy.is_some(), "{text}");
            assert_eq!(error.details["field"], "egress-allow");
        }
    }

    #[test]
    fn policy_may_allow_only_what_an_exception_opens() {
        let exceptions = [exception("10.1.0.0/16:443"), exception("192.168.1.1")];
        let check = |rule: &str| {
            let policy = NetworkPolicy::parse(&[rule], &[""; 0], PolicyAction::Deny).expect(rule);
            policy.check_reachable(&exceptions).is_ok()
        };
        for rule in [
            "10.1.2.3:443",
            "10.1.2.3",
            "10.0.0.0/8",
            "192.168.1.1:22",
            "1.1.1.1",
        ] {
            assert!(check(rule), "{rule}");
        }
        for rule in ["10.1.2.3:80", "10.2.0.0/16", "192.168.1.2", "127.0.0.1"] {
            assert!(!check(rule), "{rule}");
        }
    }

    #[test]
    fn addresses_of_an_exception_are_not_blocked() {
        let exceptions = [exception("10.1.0.0/16:443")];
        let blocked = |text: &str| is_blocked_except(text.parse().expect(text), &exceptions);
        assert!(!blocked("10.1.255.255") && !blocked("1.1.1.1"));
        assert!(blocked("10.2.0.0") && blocked("10.0.255.255") && blocked("127.0.0.1"));
    }
}
