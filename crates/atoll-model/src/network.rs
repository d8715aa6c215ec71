//! Network mode and network policy of a sandbox.
//!
//! A policy cannot open [`BLOCKED_RANGES`], the host's own addresses or other sandboxes: users of sandboxes write
//! policies, and the networks behind those addresses, including private ones (RFC 1918), belong to the operator of the
//! host. Only the operator opens some of them, with an [`EgressException`].

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Error;
use crate::exception::{self, EgressException};

/// Network mode of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Loopback only.
    #[default]
    None,
    /// Outgoing connections to public addresses. No incoming connections.
    Internet,
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Self::None),
            "internet" => Ok(Self::Internet),
            _ => Err(Error::invalid(
                "network",
                format!("{text:?} is not a network"),
                "choose none or internet",
            )),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Internet => "internet",
        })
    }
}

/// A process in a sandbox began or stopped to listen on a TCP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortEvent {
    /// A process listens on this address.
    Opened(SocketAddr),
    /// No process listens on this address any more.
    Closed(SocketAddr),
}

/// An IPv4 range in CIDR notation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    first: u32,
    bits: u8,
}

impl Cidr {
    pub(crate) const fn new(address: [u8; 4], bits: u8) -> Self {
        Self {
            first: u32::from_be_bytes(address),
            bits,
        }
    }

    /// Lowest address.
    pub const fn first(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first)
    }

    /// Highest address.
    pub const fn last(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first | self.host_mask())
    }

    /// Whether an address is in the range.
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & !self.host_mask() == self.first
    }

    /// Mask of the host part.
    const fn host_mask(self) -> u32 {
        match u32::MAX.checked_shr(self.bits as u32) {
            Some(mask) => mask,
            None => 0,
        }
    }

    /// Whether the two ranges have an address in common.
    pub(crate) const fn overlaps(self, other: Self) -> bool {
        self.contains(other.first()) || other.contains(self.first())
    }

    /// The range without host bits, if any are set.
    pub(crate) fn realigned(self) -> Option<Self> {
        let first = self.first & !self.host_mask();
        (first != self.first).then_some(Self { first, ..self })
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, digits(bits)?),
            None => (text, 32),
        };
        let address: Ipv4Addr = address.parse().ok()?;
        (bits <= 32).then_some(Self {
            first: address.to_bits(),
            bits,
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            32 => write!(f, "{}", self.first()),
            bits => write!(f, "{}/{bits}", self.first()),
        }
    }
}

/// Parses a number that has no sign.
pub(crate) fn digits<T: FromStr>(text: &str) -> Option<T> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Addresses of sandboxes and their gateways. RFC 2544 reserves them for benchmarks, so they hide no real network.
pub const SANDBOX_RANGE: Cidr = Cidr::new([198, 18, 0, 0], 15);

/// Ranges that are blocked for every sandbox, with the reason.
pub const BLOCKED_RANGES: [(Cidr, &str); 16] = [
    (Cidr::new([0, 0, 0, 0], 8), "this host"),
    (Cidr::new([10, 0, 0, 0], 8), "private"),
    (Cidr::new([100, 64, 0, 0], 10), "carrier-grade NAT"),
    (Cidr::new([127, 0, 0, 0], 8), "loopback"),
    // Azure's metadata and DNS address, which is a public one.
    (Cidr::new([168, 63, 129, 16], 32), "cloud metadata"),
    (Cidr::new([169, 254, 0, 0], 16), "link-local, with metadata"),
    (Cidr::new([172, 16, 0, 0], 12), "private"),
    (Cidr::new([192, 0, 0, 0], 24), "reserved"),
    (Cidr::new([192, 0, 2, 0], 24), "documentation"),
    (Cidr::new([192, 88, 99, 0], 24), "reserved"),
    (Cidr::new([192, 168, 0, 0], 16), "private"),
    (SANDBOX_RANGE, "sandboxes"),
    (Cidr::new([198, 51, 100, 0], 24), "documentation"),
    (Cidr::new([203, 0, 113, 0], 24), "documentation"),
    (Cidr::new([224, 0, 0, 0], 4), "multicast"),
    (Cidr::new([240, 0, 0, 0], 4), "reserved"),
];

/// Whether an address is blocked for every sandbox.
pub fn is_blocked(address: Ipv4Addr) -> bool {
    BLOCKED_RANGES
        .iter()
        .any(|(cidr, _)| cidr.contains(address))
}

/// A rule of a network policy: a range of addresses, with one port or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NetworkRule {
    /// Destination addresses.
    pub to: Cidr,
    /// Destination TCP and UDP port. `None`: all ports and all protocols.
    pub port: Option<u16>,
}

impl FromStr for NetworkRule {
    type Err = Error;

    /// Parses `1.1.1.1` or `1.1.1.0/24`, optionally with a port: `1.1.1.1:443`, `0.0.0.0/0:443`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |remedy: String| {
            Error::invalid(
                "rule",
                format!("{text:?} is not an IPv4 address or block with an optional port"),
                remedy,
            )
        };
        let (cidr, port) = match text.split_once(':') {
            Some((cidr, port)) => {
                let number: Option<u16> = digits(port).filter(|port| *port != 0);
                let number =
                    number.ok_or_else(|| invalid("a port is a number from 1 to 65535".into()))?;
                (cidr, Some(number))
            }
            None => (text, None),
        };
        let to = Cidr::parse(cidr)
            .ok_or_else(|| invalid("write it like 1.1.1.1, 1.1.1.0/24 or 1.1.1.1:443".into()))?;
        if let Some(aligned) = to.realigned() {
            return Err(invalid(format!(
                "write {aligned} for the block, or {} for the address",
                to.first()
            )));
        }
        Ok(Self { to, port })
    }
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.to),
            None => write!(f, "{}", self.to),
        }
    }
}

impl TryFrom<String> for NetworkRule {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<NetworkRule> for String {
    fn from(rule: NetworkRule) -> Self {
        rule.to_string()
    }
}

/// Action of a policy for destinations that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = NetworkDefault)]
#[serde(rename_all = "snake_case")]
pub enum PolicyAction {
    /// Allow the connection.
    #[default]
    Allow,
    /// Reject the connection.
    Deny,
}

/// Rules for outgoing connections of a sandbox with the network `internet`.
///
/// `allow` is checked first, then `deny`, then `default` applies. No policy opens blocked addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Destinations that are allowed. Takes precedence over `deny`.
    pub allow: Vec<NetworkRule>,
    /// Destinations that are rejected.
    pub deny: Vec<NetworkRule>,
    /// Action for all other destinations.
    pub default: PolicyAction,
}

impl NetworkPolicy {
    /// Maximum number of rules in each list.
    pub const MAX_RULES: usize = 256;

    /// Parses a policy from the text of its rules.
    pub fn parse<A: AsRef<str>, D: AsRef<str>>(
        allow: &[A],
        deny: &[D],
        default: PolicyAction,
    ) -> Result<Self, Error> {
        fn rules<T: AsRef<str>>(field: &str, words: &[T]) -> Result<Vec<NetworkRule>, Error> {
            words
                .iter()
                .map(|word| word.as_ref().parse())
                .collect::<Result<_, Error>>()
                .map_err(|error| error.detail("field", field))
        }
        let policy = Self {
            allow: rules("allow", allow)?,
            deny: rules("deny", deny)?,
            default,
        };
        policy.check()?;
        Ok(policy)
    }

    /// Rejects lists that are too long.
    pub fn check(&self) -> Result<(), Error> {
        for (field, rules) in [("allow", &self.allow), ("deny", &self.deny)] {
            if rules.len() > Self::MAX_RULES {
                return Err(Error::invalid(
                    field,
                    format!("{field} has {} rules", rules.len()),
                    format!("give at most {}: join blocks", Self::MAX_RULES),
                ));
            }
        }
        Ok(())
    }

    /// Rejects `allow` rules without effect: all their addresses are blocked for every sandbox, and no exception of the
    /// operator opens any of them.
    pub fn check_reachable(&self, exceptions: &[EgressException]) -> Result<(), Error> {
        for rule in &self.allow {
            if exception::overlap(exceptions, rule) {
                continue;
            }
            let blocked = BLOCKED_RANGES
                .iter()
                .find(|(cidr, _)| cidr.contains(rule.to.first()) && cidr.contains(rule.to.last()));
            if let Some((cidr, reason)) = blocked {
                return Err(Error::invalid(
                    "allow",
                    format!(
                        "allow {rule} has no effect: {cidr} ({reason}) is refused to every sandbox"
                    ),
                    "name public addresses only",
                ));
            }
        }
        Ok(())
    }

    /// Whether the policy has no effect: everything is allowed.
    pub fn allows_all(&self) -> bool {
        self.deny.is_empty() && self.default == PolicyAction::Allow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_parse_from_usual_notation() {
        for text in [
            "1.1.1.1",
            "1.1.1.0/24",
            "1.1.1.1:443",
            "0.0.0.0/0:443",
            "0.0.0.0/0",
        ] {
            assert_eq!(text.parse::<NetworkRule>().expect(text).to_string(), text);
        }
        let whole: NetworkRule = "0.0.0.0/0".parse().expect("everything");
        assert_eq!(whole.to.last(), Ipv4Addr::BROADCAST);
        assert_eq!(
            "1.2.3.4/32"
                .parse::<NetworkRule>()
                .expect("one")
                .to_string(),
            "1.2.3.4"
        );
    }

    #[test]
    fn invalid_rule_error_names_list_and_remedy() {
        for (text, remedy) in [
            ("example.com", "1.1.1.0/24"),
            ("1.1.1", "1.1.1.0/24"),
            ("16843009", "1.1.1.0/24"),
            ("0x01010101", "1.1.1.0/24"),
            ("01.1.1.1", "1.1.1.0/24"),
            ("1.1.1.1/33", "1.1.1.0/24"),
            ("1.1.1.1/+8", "1.1.1.0/24"),
            ("::1", "1 to 65535"),
            ("1.1.1.1:", "1 to 65535"),
            ("1.1.1.1:0", "1 to 65535"),
            ("1.1.1.1:+80", "1 to 65535"),
            ("1.1.1.1:65536", "1 to 65535"),
            ("1.1.1.1/8", "1.0.0.0/8"),
        ] {
            let error =
                NetworkPolicy::parse(&[text], &[""; 0], PolicyAction::Deny).expect_err(text);
            assert_eq!(error.details["field"], "allow");
            assert!(error.remedy.expect("a remedy").contains(remedy), "{text}");
        }
    }

    #[test]
    fn blocked_addresses_cannot_be_allowed() {
        for text in [
            "10.1.2.3",
            "192.168.0.0/16",
            "169.254.169.254:80",
            "198.19.0.7",
            "127.0.0.1",
        ] {
            let policy = NetworkPolicy::parse(&[text], &[""; 0], PolicyAction::Deny).expect(text);
            let error = policy.check_reachable(&[]).expect_err(text);
            assert!(error.message.contains("refused"), "{}", error.message);
        }
        // A range that also has public addresses opens those.
        let open = NetworkPolicy::parse(&["0.0.0.0/0"], &["10.0.0.0/8"], PolicyAction::Deny)
            .expect("a policy");
        assert_eq!(open.check_reachable(&[]), Ok(()));
        let many = vec!["1.1.1.1"; NetworkPolicy::MAX_RULES + 1];
        assert!(NetworkPolicy::parse(&many, &[""; 0], PolicyAction::Deny).is_err());
    }

    #[test]
    fn blocked_ranges_cover_private_and_reserved_addresses() {
        let blocked = [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.2",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ];
        let open = [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.32.0.0",
            "198.20.0.0",
            "223.255.255.255",
        ];
        let parse = |text: &str| text.parse::<Ipv4Addr>().expect(text);
        assert!(blocked.iter().all(|text| is_blocked(parse(text))));
        assert!(open.iter().all(|text| !is_blocked(parse(text))));
    }

    #[test]
    fn policy_is_plain_json() {
        let text = r#"{"allow":["1.1.1.1:443"],"deny":["1.0.0.0/8"],"default":"deny"}"#;
        let policy: NetworkPolicy = serde_json::from_str(text).expect("json");
        assert_eq!(serde_json::to_string(&policy).expect("json"), text);
        assert!(
            serde_json::from_str::<NetworkPolicy>("{}")
                .expect("empty")
                .allows_all()
        );
        assert!(serde_json::from_str::<NetworkPolicy>(r#"{"alow":[]}"#).is_err());
    }
}
