//! The probe, built by `build.rs`, and a parser for the output of its attacks.

#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The static program `probe`. `probe list` shows its commands.
pub fn probe() -> &'static Path {
    Path::new(concat!(env!("OUT_DIR"), "/probe"))
}

/// Creates a directory that contains only `/probe`: no shell, no `/etc/passwd`, no directories.
pub fn static_layer(dir: &Path) {
    fs::create_dir_all(dir).expect("the layer directory can be created");
    let program = dir.join("probe");
    fs::copy(probe(), &program).expect("the probe can be copied");
    for path in [dir, &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the mode can be set");
    }
}

/// One line of an attack's output:
/// `<what> <ok|errno NAME|signal NAME|exited N|stopped NAME|skipped> [detail]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The attempted operation, one word.
    pub what: String,
    /// `ok`, the errno's name, the signal's name, `exited N`, or `skipped`.
    pub result: String,
    /// Additional data for the evaluation.
    pub detail: String,
}

impl Attempt {
    /// Returns true if the attempt succeeded.
    pub fn worked(&self) -> bool {
        self.result == "ok"
    }

    /// The value after `NAME=` in the detail.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.detail
            .split(' ')
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn parse(line: &str) -> Option<Self> {
        let (what, rest) = line.split_once(' ')?;
        let mut words = rest.splitn(3, ' ');
        let kind = words.next()?;
        let (result, detail) = match kind {
            "ok" | "skipped" => (kind.to_owned(), rest[kind.len()..].trim_start()),
            "errno" | "signal" | "stopped" => {
                (words.next()?.to_owned(), words.next().unwrap_or_default())
            }
            "exited" => (
                format!("exited {}", words.next()?),
                words.next().unwrap_or_default(),
            ),
            _ => return None,
        };
        Some(Self {
            what: what.to_owned(),
            result,
            detail: detail.to_owned(),
        })
    }
}

/// Parses an attack's output and skips lines in other formats.
pub fn attempts(output: &str) -> Vec<Attempt> {
    output.lines().filter_map(Attempt::parse).collect()
}
