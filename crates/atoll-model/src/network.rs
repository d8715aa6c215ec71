//! What a sandbox may reach: its network, and the rules of one that has one.
//!
//! Some addresses are refused whatever a policy says ([`REFUSED`], the host's own addresses and
//! every other sandbox): policies are written by users of sandboxes, and the networks behind those
//! addresses belong to whoever runs the host. This is so for private networks (RFC 1918) too. The operator
//! opens some of them with an [`EgressException`].

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Error;
use crate::exception::{self, EgressException};

/// The network of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Loopback only.
    #[default]
    None,
    /// Out to public addresses; nothing comes in.
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

/// A server of a sandbox came or went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortEvent {
    /// It listens here now.
    Opened(SocketAddr),
    /// It no longer does.
    Closed(SocketAddr),
}

/// IPv4 addresses that share their first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block {
    first: u32,
    bits: u8,
}

impl Block {
    pub(crate) const fn new(address: [u8; 4], bits: u8) -> Self {
        Self {
            first: u32::from_be_bytes(address),
            bits,
        }
    }

    /// Its lowest address.
    pub const fn first(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first)
    }

    /// Its highest address.
    pub const fn last(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first | self.below())
    }

    /// Whether an address is one of it.
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & !self.below() == self.first
    }

    /// The bits that differ between its addresses.
    const fn below(self) -> u32 {
        match u32::MAX.checked_shr(self.bits as u32) {
            Some(mask) => mask,
            None => 0,
        }
    }

    /// Whether the two have an address in common.
    pub(crate) const fn overlaps(self, other: Self) -> bool {
        self.contains(other.first()) || other.contains(self.first())
    }

    /// The block that was probably wanted, if address bits beyond the prefix length are set.
    pub(crate) fn misaligned(self) -> Option<Self> {
        let first = self.first & !self.below();
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

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            32 => write!(f, "{}", self.first()),
            bits => write!(f, "{}/{bits}", self.first()),
        }
    }
}

/// A number without a sign.
pub(crate) fn digits<T: FromStr>(text: &str) -> Option<T> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// The addresses that sandboxes and their gateways have: meant for benchmarks inside one network
/// (RFC 2544), so that nobody's real network is hidden by them.
pub const SANDBOXES: Block = Block::new([198, 18, 0, 0], 15);

/// What no sandbox reaches, and why.
pub const REFUSED: [(Block, &str); 16] = [
    (Block::new([0, 0, 0, 0], 8), "this host"),
    (Block::new([10, 0, 0, 0], 8), "private"),
    (Block::new([100, 64, 0, 0], 10), "a carrier's"),
    (Block::new([127, 0, 0, 0], 8), "loopback"),
    // What Azure's hosts answer on: public by its number only.
    (Block::new([168, 63, 129, 16], 32), "cloud metadata"),
    (
        Block::new([169, 254, 0, 0], 16),
        "link-local, with metadata",
    ),
    (Block::new([172, 16, 0, 0], 12), "private"),
    (Block::new([192, 0, 0, 0], 24), "reserved"),
    (Block::new([192, 0, 2, 0], 24), "for documentation"),
    (Block::new([192, 88, 99, 0], 24), "reserved"),
    (Block::new([192, 168, 0, 0], 16), "private"),
    (SANDBOXES, "of sandboxes"),
    (Block::new([198, 51, 100, 0], 24), "for documentation"),
    (Block::new([203, 0, 113, 0], 24), "for documentation"),
    (Block::new([224, 0, 0, 0], 4), "multicast"),
    (Block::new([240, 0, 0, 0], 4), "reserved"),
];

/// Whether an address is refused to every sandbox.
pub fn is_refused(address: Ipv4Addr) -> bool {
    REFUSED.iter().any(|(block, _)| block.contains(address))
}

/// Some addresses, all ports of them or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    /// The addresses at the other end.
    pub to: Block,
    /// The TCP and UDP port there; every port and every protocol if there is none.
    pub port: Option<u16>,
}

impl FromStr for Rule {
    type Err = Error;

    /// `1.1.1.1`, `1.1.1.0/24`, either with a port: `1.1.1.1:443`, `0.0.0.0/0:443`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |remedy: String| {
            Error::invalid(
                "rule",
                format!("{text:?} is not an IPv4 address or block with an optional port"),
                remedy,
            )
        };
        let (block, port) = match text.split_once(':') {
            Some((block, port)) => {
                let number: Option<u16> = digits(port).filter(|port| *port != 0);
                let number =
                    number.ok_or_else(|| wrong("a port is a number from 1 to 65535".into()))?;
                (block, Some(number))
            }
            None => (text, None),
        };
        let to = Block::parse(block)
            .ok_or_else(|| wrong("write it like 1.1.1.1, 1.1.1.0/24 or 1.1.1.1:443".into()))?;
        if let Some(aligned) = to.misaligned() {
            return Err(wrong(format!(
                "write {aligned} for the block, or {} for the address",
                to.first()
            )));
        }
        Ok(Self { to, port })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.to),
            None => write!(f, "{}", self.to),
        }
    }
}

impl TryFrom<String> for Rule {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

/// What happens to what no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = NetworkDefault)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It passes.
    #[default]
    Allow,
    /// It is refused.
    Deny,
}

/// What a sandbox with a network may reach. What `allow` names passes; of the rest, what `deny`
/// names is refused; `default` decides about what is left. Nothing here opens what is always
/// refused.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// What passes, whatever the others say.
    pub allow: Vec<Rule>,
    /// What is refused.
    pub deny: Vec<Rule>,
    /// Everything else.
    pub default: Verdict,
}

impl Policy {
    /// The most rules in one list.
    pub const MOST_RULES: usize = 256;

    /// A policy from the words of its lists.
    pub fn parse<A: AsRef<str>, D: AsRef<str>>(
        allow: &[A],
        deny: &[D],
        default: Verdict,
    ) -> Result<Self, Error> {
        fn rules<T: AsRef<str>>(field: &str, words: &[T]) -> Result<Vec<Rule>, Error> {
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

    /// Refuses lists that are too long.
    pub fn check(&self) -> Result<(), Error> {
        for (field, rules) in [("allow", &self.allow), ("deny", &self.deny)] {
            if rules.len() > Self::MOST_RULES {
                return Err(Error::invalid(
                    field,
                    format!("{field} has {} rules", rules.len()),
                    format!("give at most {}: join blocks", Self::MOST_RULES),
                ));
            }
        }
        Ok(())
    }

    /// Refuses rules that can never open anything: what they name is refused to every sandbox, and no exception of the
    /// operator opens a part of it.
    pub fn check_reachable(&self, exceptions: &[EgressException]) -> Result<(), Error> {
        for rule in &self.allow {
            if exception::opens(exceptions, rule) {
                continue;
            }
            let shut = REFUSED.iter().find(|(block, _)| {
                block.contains(rule.to.first()) && block.contains(rule.to.last())
            });
            if let Some((block, why)) = shut {
                return Err(Error::invalid(
                    "allow",
                    format!("allow {rule} cannot be: {block} ({why}) is refused to every sandbox"),
                    "name public addresses only",
                ));
            }
        }
        Ok(())
    }

    /// Whether it changes anything.
    pub fn is_open(&self) -> bool {
        self.deny.is_empty() && self.default == Verdict::Allow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_people_write_them() {
        for text in [
            "1.1.1.1",
            "1.1.1.0/24",
            "1.1.1.1:443",
            "0.0.0.0/0:443",
            "0.0.0.0/0",
        ] {
            assert_eq!(text.parse::<Rule>().expect(text).to_string(), text);
        }
        let whole: Rule = "0.0.0.0/0".parse().expect("everything");
        assert_eq!(whole.to.last(), Ipv4Addr::BROADCAST);
        assert_eq!(
            "1.2.3.4/32".parse::<Rule>().expect("one").to_string(),
            "1.2.3.4"
        );
    }

    #[test]
    fn a_bad_rule_names_the_list_and_the_remedy() {
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
            let error = Policy::parse(&[text], &[""; 0], Verdict::Deny).expect_err(text);
            assert_eq!(error.details["field"], "allow");
            assert!(error.remedy.expect("a remedy").contains(remedy), "{text}");
        }
    }

    #[test]
    fn what_is_always_refused_cannot_be_allowed() {
        for text in [
            "10.1.2.3",
            "192.168.0.0/16",
            "169.254.169.254:80",
            "198.19.0.7",
            "127.0.0.1",
        ] {
            let policy = Policy::parse(&[text], &[""; 0], Verdict::Deny).expect(text);
            let error = policy.check_reachable(&[]).expect_err(text);
            assert!(error.message.contains("refused"), "{}", error.message);
        }
        // A block that has public addresses too opens those.
        let open = Policy::parse(&["0.0.0.0/0"], &["10.0.0.0/8"], Verdict::Deny).expect("a policy");
        assert_eq!(open.check_reachable(&[]), Ok(()));
        let many = vec!["1.1.1.1"; Policy::MOST_RULES + 1];
        assert!(Policy::parse(&many, &[""; 0], Verdict::Deny).is_err());
    }

    #[test]
    fn refused_addresses_are_those_of_nobody_or_of_the_host_and_its_neighbours() {
        let refused = [
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
        assert!(refused.iter().all(|text| is_refused(parse(text))));
        assert!(open.iter().all(|text| !is_refused(parse(text))));
    }

    #[test]
    fn a_policy_is_plain_json() {
        let text = r#"{"allow":["1.1.1.1:443"],"deny":["1.0.0.0/8"],"default":"deny"}"#;
        let policy: Policy = serde_json::from_str(text).expect("json");
        assert_eq!(serde_json::to_string(&policy).expect("json"), text);
        assert!(
            serde_json::from_str::<Policy>("{}")
                .expect("empty")
                .is_open()
        );
        assert!(serde_json::from_str::<Policy>(r#"{"alow":[]}"#).is_err());
    }
}
