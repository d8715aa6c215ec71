//! Patterns of names: `*`, `?` and `[a-z]`, `[!a-z]`. Case of ASCII letters is ignored.

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// This byte.
    Byte(u8),
    /// Any one byte.
    One,
    /// A byte of a set, or of its complement.
    Of { ranges: Vec<(u8, u8)>, not: bool },
    /// Any sequence of bytes.
    Any,
}

impl Part {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(known) => *known == byte,
            Self::One | Self::Any => true,
            Self::Of { ranges, not } => {
                let within = |(low, high): &(u8, u8)| (*low..=*high).contains(&byte);
                ranges.iter().any(within) != *not
            }
        }
    }
}

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    parts: Vec<Part>,
    /// Whether the pattern is matched against the whole path instead of the last component.
    whole: bool,
}

impl Glob {
    /// A pattern with a `/` matches whole paths. A pattern without `*`, `?` and `[` matches a part of a name, and an empty
    /// one matches all.
    pub(super) fn new(pattern: &[u8]) -> Self {
        let plain = !pattern.iter().any(|byte| b"*?[".contains(byte));
        let mut parts = Vec::new();
        let mut rest = pattern;
        while let [first, after @ ..] = rest {
            let (part, after) = match first {
                b'*' => (Part::Any, after),
                b'?' => (Part::One, after),
                b'[' => of(after).unwrap_or((Part::Byte(b'['), after)),
                byte => (Part::Byte(byte.to_ascii_lowercase()), after),
            };
            parts.push(part);
            rest = after;
        }
        if plain {
            parts.insert(0, Part::Any);
            parts.push(Part::Any);
        }
        Self {
            parts,
            whole: pattern.contains(&b'/'),
        }
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let name = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) if !self.whole => &path[slash + 1..],
            _ => path,
        };
        let (mut part, mut at) = (0, 0);
        // Position of the last `*`, and of the end of its match: backtracking to earlier ones is unnecessary.
        let mut star = None;
        while at < name.len() {
            match self.parts.get(part) {
                Some(Part::Any) => {
                    star = Some((part, at));
                    part += 1;
                }
                Some(known) if known.takes(name[at].to_ascii_lowercase()) => {
                    part += 1;
                    at += 1;
                }
                _ => match star {
                    Some((known, reach)) => {
                        star = Some((known, reach + 1));
                        (part, at) = (known + 1, reach + 1);
                    }
                    None => return false,
                },
            }
        }
        self.parts[part..].iter().all(|part| *part == Part::Any)
    }
}

/// Contents of the brackets, and the rest after them; `None` if they are not closed.
fn of(pattern: &[u8]) -> Option<(Part, &[u8])> {
    let (not, pattern) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    // A leading `]` is an ordinary character of the set.
    let close = 1 + pattern.iter().skip(1).position(|byte| *byte == b']')?;
    let (mut inside, after) = (&pattern[..close], &pattern[close + 1..]);
    let mut ranges = Vec::new();
    while let [low, rest @ ..] = inside {
        let low = low.to_ascii_lowercase();
        if let [b'-', high, rest @ ..] = rest {
            ranges.push((low, high.to_ascii_lowercase()));
            inside = rest;
        } else {
            ranges.push((low, low));
            inside = rest;
        }
    }
    Some((Part::Of { ranges, not }, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_expected() {
        for (pattern, path, fits) in [
            ("", "a/b", true),
            ("b", "a/abc", true),
            ("B", "a/abc", true),
            ("a", "a/b", false),
            ("*.rs", "src/lib.rs", true),
            ("*.RS", "src/lib.rs", true),
            ("*.rs", "src.rs/lib", false),
            ("src/*.rs", "src/a/lib.rs", true),
            ("src/*.rs", "lib/a.rs", false),
            ("?b", "ab", true),
            ("?b", "b", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]x", "]x", true),
            ("[ax", "[ax", true),
            ("a*b*c", "aXXbYYbZc", true),
            ("a*b*c", "aXXbYYbZd", false),
            ("*", "anything", true),
            ("**", "", true),
        ] {
            let glob = Glob::new(pattern.as_bytes());
            assert_eq!(glob.matches(path.as_bytes()), fits, "{pattern} {path}");
        }
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let glob = Glob::new("*a".repeat(500).as_bytes());
        assert!(!glob.matches(&[b'a'; 250]));
        assert!(!glob.matches("ab".repeat(400).as_bytes()));
    }
}
