//! Names of archive entries, checked before use.

/// A checked name below some directory: relative, without `.`, `..` and empty parts. The directory itself is the empty name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(Vec<u8>);

impl Name {
    /// Checks an untrusted name; the error is the reason.
    pub fn parse(raw: &[u8]) -> Result<Self, &'static str> {
        if raw.starts_with(b"/") {
            return Err(
                "its name is absolute; pack the archive with relative names (`tar -C ROOT -c .`)",
            );
        }
        if raw.contains(&0) {
            return Err("its name contains a zero byte");
        }
        let mut name = Vec::with_capacity(raw.len());
        for part in raw.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    return Err("its name contains `..`, which could lead out");
                }
                part => {
                    if !name.is_empty() {
                        name.push(b'/');
                    }
                    name.extend_from_slice(part);
                }
            }
        }
        Ok(Self(name))
    }

    /// Whether the name is the directory itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The name.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Parent directory and last component.
    pub fn split(&self) -> (&[u8], &[u8]) {
        split(&self.0)
    }
}

/// Parent directory and last component of a checked name.
pub fn split(name: &[u8]) -> (&[u8], &[u8]) {
    match name.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&name[..slash], &name[slash + 1..]),
        None => (b"", name),
    }
}
