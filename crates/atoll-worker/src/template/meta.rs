//! Reads and writes the description of a template (`template.json`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use atoll_model::runtime::{TemplateInfo, TemplateUser};
use rustix::fs::{Mode, OFlags};

use super::build_limits::Report;
use super::error::{Error, failed};
use super::{ID_COUNT, random_hex};

/// Source of a new template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory with a root file system; it is copied.
    Directory(PathBuf),
    /// A tar archive of a root file system: plain, gzip or zstd.
    Archive(PathBuf),
}

/// Fails if the fields of a user would not form one line of an account file.
pub(super) fn check_user(user: &TemplateUser) -> Result<(), Error> {
    let starts_well = user
        .name
        .starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    let is_allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
    };
    let name = starts_well && user.name.len() <= 32 && user.name.bytes().all(is_allowed);
    let home = user.home.to_str().is_some_and(|home| {
        home.starts_with('/')
            && !home.contains([':', '\n', '\0'])
            && !home.split('/').any(|part| part == "..")
    });
    if name && home && user.uid < ID_COUNT && user.gid < ID_COUNT {
        Ok(())
    } else {
        Err(Error::User(user.name.clone()))
    }
}

/// Describes a new template, with all options at their defaults.
pub(super) fn new_info(source: String, report: Report) -> TemplateInfo {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    TemplateInfo {
        version: 1,
        id: Some(random_hex()),
        created_at: now.as_secs(),
        source,
        user: TemplateUser::default(),
        env: BTreeMap::new(),
        sudo: true,
        nested_user_namespaces: false,
        size: report.bytes,
        files: report.files,
    }
}

/// Reads the description of the template in `dir`.
pub(super) fn read_info(dir: &OwnedFd, name: &str, path: &Path) -> Result<TemplateInfo, Error> {
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
pub(super) fn write_info(info: &TemplateInfo, dir: &OwnedFd, path: &Path) -> Result<(), Error> {
    const NEW: &str = "template.json.new";
    let path = path.join("template.json");
    let text = serde_json::to_vec_pretty(info)
        .map_err(|error| failed("describe", &path)(std::io::Error::from(error)))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(dir, NEW, flags, Mode::from(0o644)).map_err(failed("create", &path))?;
    let mut file = File::from(file);
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(failed("write", &path))?;
    rustix::fs::renameat(dir, NEW, dir, "template.json").map_err(failed("write", path))
}
