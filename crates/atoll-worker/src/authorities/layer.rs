//! Contents of a layer, from the files of a template.
//!
//! The template is not trusted: no lookup leaves its root, and only regular files up to a maximum
//! size are read.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::VARIABLES;
use crate::template::Template;

/// Paths of bundles: Debian, Alpine and Arch; Fedora; openSUSE; OpenSSL's default.
const BUNDLES: [&str; 4] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
    "etc/ssl/cert.pem",
];

/// Directories whose certificates distributions add when they rebuild the bundle, with the file
/// extension.
const SOURCE_DIRECTORIES: [(&str, &str); 3] = [
    ("usr/local/share/ca-certificates", "crt"),
    ("etc/pki/ca-trust/source/anchors", "pem"),
    ("etc/ca-certificates/trust-source/anchors", "crt"),
];

/// Directory of sudo's settings, and the file with variables that a setting names: sudo does not
/// pass on the caller's variables.
const SUDOERS_DIRECTORY: &str = "etc/sudoers.d";
const SUDO_ENV_FILE: &str = "etc/atoll-authorities.env";

/// Maximum size of a bundle.
const MAX_BUNDLE_BYTES: u64 = 16 << 20;

/// Fills an empty directory with the layer for a template. Returns the path of the bundle in
/// sandboxes.
pub(super) fn fill(
    directory: &Path,
    template: &Template,
    certificates: &[String],
) -> io::Result<String> {
    let builder = LayerBuilder {
        directory,
        root: &template.root,
        template: fs::read_link(fd_path(&template.root))?,
    };
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    let named = VARIABLES
        .iter()
        .filter_map(|name| template.meta.env.get(*name));
    let named = named.filter_map(|path| path.strip_prefix('/'));
    let mut extended = BTreeSet::new();
    let mut bundle = None;
    for path in BUNDLES.into_iter().chain(named) {
        let Some((path_in_layer, text)) = builder.read_bundle(path)? else {
            continue;
        };
        bundle.get_or_insert_with(|| (path, missing_certificates(&text, certificates)));
        if extended.insert(path_in_layer.clone()) {
            builder.write(
                &path_in_layer,
                with_certificates(&text, certificates).as_bytes(),
                0o644,
            )?;
        }
    }
    let (bundle, added) = if let Some(found) = bundle {
        found
    } else {
        let text = with_certificates(&host_bundle(), certificates);
        builder.write(&builder.new_path(BUNDLES[0])?, text.as_bytes(), 0o644)?;
        (BUNDLES[0], certificates.iter().collect())
    };
    for (source, extension) in SOURCE_DIRECTORIES {
        let Some(path_in_layer) = builder.directory(source)? else {
            continue;
        };
        for (number, certificate) in added.iter().enumerate() {
            let name = path_in_layer.join(format!("atoll-{}.{extension}", number + 1));
            builder.write(&name, certificate.as_bytes(), 0o644)?;
        }
    }
    let bundle = format!("/{bundle}");
    if let Some(path_in_layer) = builder.directory(SUDOERS_DIRECTORY)? {
        let lines = VARIABLES.iter().map(|name| format!("{name}={bundle}\n"));
        let lines: String = lines.collect();
        builder.write(&builder.new_path(SUDO_ENV_FILE)?, lines.as_bytes(), 0o644)?;
        let setting = format!("Defaults env_file=/{SUDO_ENV_FILE}\n");
        builder.write(
            &path_in_layer.join("atoll-authorities"),
            setting.as_bytes(),
            0o440,
        )?;
    }
    Ok(bundle)
}

/// Opens a layer's directory as a lower directory of a mount.
pub(super) fn open(at: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, at, flags, Mode::empty())?)
}

/// The certificates that this host trusts, for templates without a bundle: a variable that names a
/// bundle replaces the list that a program brings.
fn host_bundle() -> String {
    let mut bundles = BUNDLES
        .iter()
        .map(|path| fs::read_to_string(Path::new("/").join(path)));
    bundles.find_map(Result::ok).unwrap_or_default()
}

/// The certificates that a bundle does not contain.
fn missing_certificates<'a>(bundle: &str, certificates: &'a [String]) -> Vec<&'a String> {
    let is_missing = |certificate: &&String| !bundle.contains(certificate.trim_end());
    certificates.iter().filter(is_missing).collect()
}

/// The bundle with the missing certificates appended.
fn with_certificates(bundle: &str, certificates: &[String]) -> String {
    let mut text = bundle.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.extend(
        missing_certificates(bundle, certificates)
            .into_iter()
            .map(String::as_str),
    );
    text
}

fn fd_path(descriptor: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into()
}

struct LayerBuilder<'a> {
    /// Directory of the new layer.
    directory: &'a Path,
    /// Root of the template.
    root: &'a OwnedFd,
    /// Path of `root`.
    template: PathBuf,
}

impl LayerBuilder<'_> {
    /// Opens a file of the template as a program in a sandbox would; `None` if it is absent.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::CLOEXEC;
        match openat2(self.root, path, flags, Mode::empty(), resolve) {
            Ok(opened) => Ok(Some(opened)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Path of an open file in the template, without symbolic links.
    fn path_of(&self, opened: &OwnedFd) -> io::Result<PathBuf> {
        let path = fs::read_link(fd_path(opened))?;
        let below = path.strip_prefix(&self.template);
        below.map(Path::to_owned).map_err(io::Error::other)
    }

    /// Reads a bundle; returns its path and text.
    fn read_bundle(&self, path: &str) -> io::Result<Option<(PathBuf, String)>> {
        let Some(opened) = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK)? else {
            return Ok(None);
        };
        let found = rustix::fs::fstat(&opened)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_file || found.st_size as u64 > MAX_BUNDLE_BYTES {
            return Ok(None);
        }
        let path_in_layer = self.path_of(&opened)?;
        let mut text = Vec::new();
        File::from(opened)
            .take(MAX_BUNDLE_BYTES)
            .read_to_end(&mut text)?;
        Ok(Some((
            path_in_layer,
            String::from_utf8_lossy(&text).into_owned(),
        )))
    }

    /// Path of a directory of the template; `None` if it is absent.
    fn directory(&self, path: &str) -> io::Result<Option<PathBuf>> {
        let opened = self.open(path, OFlags::PATH | OFlags::DIRECTORY)?;
        opened.map(|opened| self.path_of(&opened)).transpose()
    }

    /// Path for a file that the template does not have, through its symbolic links.
    fn new_path(&self, path: &str) -> io::Result<PathBuf> {
        let path = Path::new(path);
        for ancestor in path.ancestors().skip(1) {
            let name = match ancestor.to_str() {
                Some("") | None => ".",
                Some(name) => name,
            };
            if let Some(path_in_layer) = self.directory(name)? {
                let rest = path.strip_prefix(ancestor).map_err(io::Error::other)?;
                return Ok(path_in_layer.join(rest));
            }
        }
        Ok(path.to_owned())
    }

    /// Writes a file owned by root into the layer, in directories with the attributes that they
    /// have in the template.
    fn write(&self, path_in_layer: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
        let mut below = PathBuf::new();
        let parents = path_in_layer.parent().unwrap_or(Path::new(""));
        for part in parents.components() {
            // Paths from `/proc/self/fd` have no other components.
            let Component::Normal(part) = part else {
                continue;
            };
            below.push(part);
            let at = self.directory.join(&below);
            match DirBuilder::new().mode(0o700).create(&at) {
                Ok(()) => self.copy_attributes(&below, &at)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(self.directory.join(path_in_layer))?;
        file.write_all(contents)?;
        file.set_permissions(fs::Permissions::from_mode(mode))
    }

    /// Copies owner and mode of the template's directory.
    fn copy_attributes(&self, below: &Path, at: &Path) -> io::Result<()> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mode = match openat2(self.root, below, flags, Mode::empty(), resolve) {
            Ok(opened) => {
                let found = rustix::fs::fstat(&opened)?;
                chown(at, Some(found.st_uid), Some(found.st_gid))?;
                found.st_mode & 0o7777
            }
            Err(_) => 0o755,
        };
        fs::set_permissions(at, fs::Permissions::from_mode(mode))
    }
}
