//! Description of a template (`template.json`) and options of a new one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::build_limits::Report;
use super::error::{Error, failed};
use super::{ID_COUNT, random_hex};

/// The user that commands run as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Name in `/etc/passwd`.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Home directory.
    pub home: PathBuf,
}

impl User {
    /// Fails if the fields would not form one line of an account file.
    pub(super) fn check(&self) -> Result<(), Error> {
        let starts_well = self
            .name
            .starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
        let is_allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
        };
        let name = starts_well && self.name.len() <= 32 && self.name.bytes().all(is_allowed);
        let home = self.home.to_str().is_some_and(|home| {
            home.starts_with('/')
                && !home.contains([':', '\n', '\0'])
                && !home.split('/').any(|part| part == "..")
        });
        if name && home && self.uid < ID_COUNT && self.gid < ID_COUNT {
            Ok(())
        } else {
            Err(Error::User(self.name.clone()))
        }
    }
}

impl Default for User {
    fn default() -> Self {
        Self {
            name: "user".to_owned(),
            uid: 1000,
            gid: 1000,
            home: "/home/user".into(),
        }
    }
}

/// Contents of `template.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateInfo {
    /// Version of this format, 1.
    pub version: u32,
    /// Id of the layer, independent of the template's name. `None` in a template from before there
    /// were ids, until its first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Time of creation, in seconds since 1970.
    pub created_at: u64,
    /// Its source: "host system", "directory X" or "archive X".
    pub source: String,
    /// User that commands run as.
    #[serde(default)]
    pub user: User,
    /// Variables of every command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Whether setuid programs work; otherwise the sandbox is `nosuid` with no-new-privileges.
    #[serde(default = "default_true")]
    pub sudo: bool,
    /// Whether programs can create user namespaces.
    #[serde(default)]
    pub nested_user_namespaces: bool,
    /// Bytes of its files.
    pub size: u64,
    /// Number of its files, directories and links.
    pub files: u64,
}

const fn default_true() -> bool {
    true
}

/// Source of a new template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory with a root file system; it is copied.
    Directory(PathBuf),
    /// A tar archive of a root file system: plain, gzip or zstd.
    Archive(PathBuf),
}

/// Options of a new template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateOptions {
    /// User that commands run as; gets an account and a home if the tree has none.
    pub user: User,
    /// Variables of every command.
    pub env: BTreeMap<String, String>,
    /// Whether setuid programs work.
    pub sudo: bool,
    /// Whether programs can create user namespaces.
    pub nested_user_namespaces: bool,
    /// Whether an existing template of that name is replaced.
    pub replace: bool,
    /// Maximum bytes of the unpacked tree.
    pub max_bytes: u64,
}

impl Default for TemplateOptions {
    fn default() -> Self {
        Self {
            user: User::default(),
            env: BTreeMap::new(),
            sudo: true,
            nested_user_namespaces: false,
            replace: false,
            max_bytes: 64 << 30,
        }
    }
}

impl TemplateInfo {
    /// Describes a new template, with all options at their defaults.
    pub(super) fn new(source: String, report: Report) -> Self {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            version: 1,
            id: Some(random_hex()),
            created_at: now.as_secs(),
            source,
            user: User::default(),
            env: BTreeMap::new(),
            sudo: true,
            nested_user_namespaces: false,
            size: report.bytes,
            files: report.files,
        }
    }

    /// Reads the description of the template in `dir`.
    pub(super) fn read(dir: &OwnedFd, name: &str, path: &Path) -> Result<Self, Error> {
        let path = path.join("template.json");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, "template.json", flags, Mode::empty())
            .map_err(failed("open", &path))?;
        let mut text = String::new();
        File::from(file)
            .read_to_string(&mut text)
            .map_err(failed("read", &path))?;
        serde_json::from_str(&text).map_err(|source| Error::Damaged {
            name: name.to_owned(),
            path,
            source,
        })
    }

    /// Writes the description to the directory of a template, atomically.
    pub(super) fn write(&self, dir: &OwnedFd, path: &Path) -> Result<(), Error> {
        const NEW: &str = "template.json.new";
        let path = path.join("template.json");
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| failed("describe", &path)(std::io::Error::from(error)))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, NEW, flags, Mode::from(0o644))
            .map_err(failed("create", &path))?;
        let mut file = File::from(file);
        file.write_all(&text)
            .and_then(|()| file.sync_all())
            .map_err(failed("write", &path))?;
        rustix::fs::renameat(dir, NEW, dir, "template.json").map_err(failed("write", path))
    }
}
