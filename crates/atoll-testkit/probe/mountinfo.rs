//! Parser of `/proc/self/mountinfo`. The probe and the library compile this same file.

use std::path::PathBuf;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// Mount point.
    pub point: PathBuf,
    /// The directory of the file system that is its root.
    pub root: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// Mount source.
    pub source: String,
    /// Options of this mount.
    pub options: String,
    /// Options of its file system.
    pub super_options: String,
}

impl Mount {
    /// Neither the mount nor its file system can be written.
    pub fn is_read_only(&self) -> bool {
        let first = |options: &str| options.split(',').next() == Some("ro");
        first(&self.options) || first(&self.super_options)
    }
}

/// Reads the text of a mountinfo file; a line that is not understood is left out.
fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(line).collect()
}

/// The mounts of this process, in the order of their making.
pub fn mounts() -> Vec<Mount> {
    parse(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn line(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    Some(Mount {
        root: unescape(left.next()?).into(),
        point: unescape(left.next()?).into(),
        options: left.next()?.to_owned(),
        kind: right.next()?.to_owned(),
        source: unescape(right.next()?),
        super_options: right.next().unwrap_or_default().to_owned(),
    })
}

/// The kernel writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let digits = others
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &others[3..];
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse;

    #[test]
    fn mountinfo_line_is_unescaped() {
        let text = "\
36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 shared:2 - ext3 /dev/root ro,errors=continue
41 35 0:5 / /proc rw,nosuid - proc proc rw
not a mount
";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].point, Path::new("/mnt 2"));
        assert_eq!(found[0].root, Path::new("/mnt1"));
        assert_eq!(
            (found[0].kind.as_str(), found[0].source.as_str()),
            ("ext3", "/dev/root")
        );
        assert!(found[0].is_read_only());
        assert!(!found[1].is_read_only());
    }
}
