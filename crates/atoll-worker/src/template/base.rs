//! The template `base`: a sealed tree built from the host's own system, so that a sandbox has the
//! host's programs without a download.
//!
//! Invariant: it contains nothing that an ordinary user of the host could not read, no data of
//! users, no secrets, and of `/etc` and `/var` only what the tables below name. The tables are the
//! policy; the code only follows them.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::accounts::Accounts;
use super::build_limits::BuildMeter;
use super::copy::{Copier, Rules, count, matches_any, names};
use super::layer_path;
use super::{Error, OPEN_DIRECTORY, TemplateUser, exists, failed};

/// System directories, copied as on the host: symlinks with a merged `/usr`, otherwise directories.
const SYSTEM: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Parts of them that are useless in a sandbox or are the host's configuration.
const SYSTEM_EXCLUDED: &[&str] = &[
    "usr/lib/modules",
    "usr/lib/firmware",
    "usr/lib/debug",
    "usr/src/linux*",
    "usr/local/etc/*",
    "usr/etc/*",
    "lib/modules",
    "lib/firmware",
];

/// Files of `/etc` to copy. All others are left out: passwords, keys, hosts, networks, services,
/// tokens of package managers (`npmrc`, `pip.conf`, `gitconfig`, `maven`), proxies.
#[rustfmt::skip]
const ETC: &[&str] = &[
    // programs and libraries
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "python3*", "java-*", "perl", "fonts", "gtk-*", "glvnd",
    "OpenCL", "vulkan", "ImageMagick-*", "gdb", "vim", "nanorc", "inputrc", "wgetrc", "groff", "manpath.config", "magic",
    "magic.mime", "mime.types", "mailcap", "mke2fs.conf", "xattr.conf", "xml", "sgml", "terminfo", "musl-*", "ld-musl-*",
    // certificates
    "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates", "ca-certificates.conf", "pki/tls/certs",
    "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust", "crypto-policies",
    // packages
    "apt", "dpkg", "debconf.conf", "ucf.conf", "apk/keys", "apk/arch", "apk/repositories", "apk/world", "pki/rpm-gpg",
    // shells and accounts
    "profile", "profile.d", "bash.bashrc", "bashrc", "bash_completion", "bash_completion.d", "skel", "shells", "login.defs",
    "adduser.conf", "deluser.conf", "default/locale", "default/useradd", "sudo.conf", "pam.d", "pam.conf", "security",
    // names and identification
    "nsswitch.conf", "host.conf", "gai.conf", "protocols", "services", "rpc", "ethertypes", "networks", "netconfig",
    "localtime", "timezone", "locale.alias", "locale.gen", "locale.conf", "os-release", "debian_version", "lsb-release",
    "alpine-release", "redhat-release", "system-release", "fedora-release", "arch-release", "issue",
];

/// Exceptions from these: files with passwords.
const ETC_EXCLUDED: &[&str] = &["etc/apt/auth.conf*", "etc/security/opasswd*"];

/// State of the package manager and its tools. It is copied, not linked, because a sandbox changes
/// it.
#[rustfmt::skip]
const VAR: &[&str] = &[
    "lib/dpkg", "lib/apt/extended_states", "lib/pam", "lib/ucf", "lib/shells.state", "lib/python", "lib/xml-core",
    "lib/sgml-base", "lib/emacsen-common", "lib/dictionaries-common", "lib/vim", "cache/debconf",
];

const VAR_EXCLUDED: &[&str] = &[
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    // Operations of the host's dpkg in progress, which would look interrupted in the sandbox.
    "var/lib/dpkg/updates/*",
    "var/cache/debconf/passwords.dat*",
];

/// A directory of every `base`: path, mode, owner and group by name.
type Directory = (&'static str, u32, &'static str, &'static str);

/// Empty except for the files that are copied above.
const DIRECTORIES: &[Directory] = &[
    ("boot", 0o755, "root", "root"),
    ("dev", 0o755, "root", "root"),
    ("etc", 0o755, "root", "root"),
    ("etc/init.d", 0o755, "root", "root"),
    ("etc/opt", 0o755, "root", "root"),
    ("home", 0o755, "root", "root"),
    ("home/user", 0o755, "user", "user"),
    ("media", 0o755, "root", "root"),
    ("mnt", 0o755, "root", "root"),
    ("opt", 0o755, "root", "root"),
    ("proc", 0o555, "root", "root"),
    ("root", 0o700, "root", "root"),
    ("run", 0o755, "root", "root"),
    ("srv", 0o755, "root", "root"),
    ("sys", 0o555, "root", "root"),
    ("tmp", 0o1777, "root", "root"),
    ("var", 0o755, "root", "root"),
    ("var/backups", 0o755, "root", "root"),
    ("var/cache", 0o755, "root", "root"),
    ("var/cache/apt/archives", 0o755, "root", "root"),
    ("var/cache/apt/archives/partial", 0o700, "_apt", "root"),
    ("var/cache/man", 0o755, "man", "man"),
    ("var/lib", 0o755, "root", "root"),
    ("var/lib/apt/lists", 0o755, "root", "root"),
    ("var/lib/apt/lists/partial", 0o700, "_apt", "root"),
    ("var/lib/apt/mirrors/partial", 0o755, "root", "root"),
    ("var/lib/apt/periodic", 0o755, "root", "root"),
    ("var/lib/misc", 0o755, "root", "root"),
    ("var/local", 0o2775, "root", "staff"),
    ("var/log", 0o755, "root", "root"),
    ("var/log/apt", 0o755, "root", "root"),
    ("var/mail", 0o2775, "root", "mail"),
    ("var/opt", 0o755, "root", "root"),
    ("var/spool", 0o755, "root", "root"),
    ("var/tmp", 0o1777, "root", "root"),
];

const LINKS: &[(&str, &str)] = &[
    ("etc/mtab", "../proc/self/mounts"),
    ("var/lock", "/run/lock"),
    ("var/run", "/run"),
    ("var/spool/mail", "../mail"),
];

const HOSTS: &str = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n";

const SUDOERS: &str = "\
Defaults env_reset
Defaults !fqdn
Defaults secure_path=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"
root ALL=(ALL:ALL) ALL
user ALL=(ALL:ALL) NOPASSWD: ALL
@includedir /etc/sudoers.d
";

/// Policy for package scripts: start no services, because nothing in a sandbox supervises them.
const POLICY_RC_D: &str = "#!/bin/sh\nexit 101\n";

/// Fills `layer` from the system under `host`.
pub(super) fn build(
    host: &Path,
    layer: &OwnedFd,
    avoid: (u64, u64),
    meter: &mut BuildMeter<'_>,
) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let host_path = host;
    let host = rustix::fs::open(host, flags, Mode::empty()).map_err(failed("open", host))?;
    let usr = open_below(&host, "usr").ok_or_else(|| Error::Host(host_path.join("usr")))?;
    meter.total_files = Some(count(&usr));
    meter.report_progress();
    let public = Rules {
        public_only: true,
        avoid,
        ..Rules::default()
    };
    let mut copier = Copier::new(layer, meter)?;
    let system = Rules {
        link: true,
        edited: Some("usr/local/"),
        excluded: SYSTEM_EXCLUDED,
        ..public
    };
    for name in SYSTEM {
        copier.entry(&host, &c_name(name)?, "", &system)?;
    }
    copy_listed(
        &mut copier,
        &host,
        "etc",
        ETC,
        &Rules {
            no_credentials: true,
            excluded: ETC_EXCLUDED,
            ..public
        },
    )?;
    copy_listed(
        &mut copier,
        &host,
        "var",
        VAR,
        &Rules {
            excluded: VAR_EXCLUDED,
            ..public
        },
    )?;

    let user = TemplateUser::default();
    let accounts = accounts(&host, layer, &user)?;
    make_directories(layer, &accounts, copier.meter)?;
    if let Some(skeleton) = open_below(&host, "etc/skel") {
        for (owner, home) in [((0, 0), "root"), ((user.uid, user.gid), "home/user")] {
            let rules = Rules {
                owner: Some(owner),
                no_credentials: true,
                ..public
            };
            copier.contents(&skeleton, home, &rules)?;
        }
    }
    replace_id_in_profile(layer)?;
    write_files(layer, &accounts, copier.meter)
}

/// Removes a process from login shells: Debian's `/etc/profile` runs `id`, which takes as long as
/// the rest of the shell's start, and agents often run each command in a login shell. Bash has the
/// value in `EUID`.
fn replace_id_in_profile(layer: &OwnedFd) -> Result<(), Error> {
    const PROFILE: &str = "etc/profile";
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(layer, PROFILE, flags, Mode::empty()) else {
        return Ok(());
    };
    let mut file = File::from(file);
    let mut text = String::new();
    if file.read_to_string(&mut text).is_err() {
        return Ok(());
    }
    let mut replaced = text.clone();
    for call in ["\"$(id -u)\"", "\"`id -u`\""] {
        replaced = replaced.replace(call, "\"${EUID:-$(id -u)}\"");
    }
    if replaced == text {
        return Ok(());
    }
    // It is a copy, not a hard link to the host's file.
    let written = rustix::fs::unlinkat(layer, PROFILE, AtFlags::empty())
        .map_err(std::io::Error::from)
        .and_then(|()| layer_path::write_file(layer, PROFILE, replaced.as_bytes(), 0o644, 0));
    written.map_err(failed("write", format!("/{PROFILE}")))
}

/// Copies the entries of the directory `top` that match `patterns`.
fn copy_listed(
    copier: &mut Copier<'_, '_>,
    host: &OwnedFd,
    top: &str,
    patterns: &[&str],
    rules: &Rules,
) -> Result<(), Error> {
    for pattern in patterns {
        let path = format!("{top}/{pattern}");
        let (directory, last) = path.rsplit_once('/').unwrap_or(("", &path));
        let Some(from) = open_below(host, directory) else {
            continue;
        };
        for name in names(&from).map_err(failed("list", directory))? {
            if matches_any(name.to_bytes(), &[last]) {
                copier.entry(&from, &name, directory, rules)?;
            }
        }
    }
    Ok(())
}

/// The accounts of the template, with a shell that exists in it.
fn accounts(host: &OwnedFd, layer: &OwnedFd, user: &TemplateUser) -> Result<Accounts, Error> {
    let shell = if exists(layer, "usr/bin/bash") || exists(layer, "bin/bash") {
        "/bin/bash"
    } else {
        "/bin/sh"
    };
    Ok(Accounts::new(
        &read(host, "etc/passwd")?,
        &read(host, "etc/group")?,
        user,
        shell,
    ))
}

fn make_directories(
    layer: &OwnedFd,
    accounts: &Accounts,
    meter: &mut BuildMeter<'_>,
) -> Result<(), Error> {
    for (name, mode, owner, group) in DIRECTORIES {
        meter.entry()?;
        let uid = accounts.uid(owner).unwrap_or(0);
        let gid = accounts.gid(group).unwrap_or(0);
        layer_path::make_directories(layer, name.as_bytes())
            .and_then(|dir| layer_path::set_owner_and_mode(&dir, uid, gid, *mode))
            .map_err(failed("create the directory", format!("/{name}")))?;
    }
    for (name, target) in LINKS {
        meter.entry()?;
        let (directory, last) = name.rsplit_once('/').unwrap_or(("", name));
        layer_path::open_directory(layer, directory.as_bytes())
            .and_then(|dir| rustix::fs::symlinkat(*target, dir, last))
            .map_err(failed("create the link", format!("/{name}")))?;
    }
    add_python_link(layer, meter)
}

/// Many systems have only `python3`; programs and users call `python`.
fn add_python_link(layer: &OwnedFd, meter: &mut BuildMeter<'_>) -> Result<(), Error> {
    const NAME: &str = "usr/local/bin/python";
    let is_present = |name| exists(layer, name);
    if !is_present("usr/bin/python3") || is_present("usr/bin/python") || is_present(NAME) {
        return Ok(());
    }
    meter.entry()?;
    layer_path::make_directories(layer, b"usr/local/bin")
        .and_then(|dir| rustix::fs::symlinkat("/usr/bin/python3", dir, "python"))
        .map_err(failed("create the link", format!("/{NAME}")))
}

fn write_files(
    layer: &OwnedFd,
    accounts: &Accounts,
    meter: &mut BuildMeter<'_>,
) -> Result<(), Error> {
    let mut write = |name: &str, contents: &str, mode: u32, gid: u32| {
        meter.entry()?;
        layer_path::write_file(layer, name, contents.as_bytes(), mode, gid)
            .map_err(failed("write", format!("/{name}")))
    };
    write("etc/passwd", &accounts.passwd, 0o644, 0)?;
    write("etc/group", &accounts.group, 0o644, 0)?;
    write(
        "etc/shadow",
        &accounts.shadow,
        0o640,
        accounts.gid("shadow").unwrap_or(0),
    )?;
    write("etc/hostname", "sandbox\n", 0o644, 0)?;
    write("etc/hosts", HOSTS, 0o644, 0)?;
    write("etc/resolv.conf", "", 0o644, 0)?;
    write("etc/machine-id", "", 0o444, 0)?;
    if exists(layer, "usr/bin/sudo") {
        write("etc/sudoers", SUDOERS, 0o440, 0)?;
        layer_path::make_directories(layer, b"etc/sudoers.d")
            .and_then(|dir| layer_path::set_owner_and_mode(&dir, 0, 0, 0o750))
            .map_err(failed("create the directory", "/etc/sudoers.d"))?;
    }
    let programs = layer_path::open_directory(layer, b"usr/sbin");
    if exists(layer, "var/lib/dpkg")
        && programs.is_ok_and(|programs| !exists(&programs, "policy-rc.d"))
    {
        write("usr/sbin/policy-rc.d", POLICY_RC_D, 0o755, 0)?;
    }
    Ok(())
}

/// Opens a directory of the host without following links; `None` if it is absent or not readable
/// for everyone.
fn open_below(host: &OwnedFd, path: &str) -> Option<OwnedFd> {
    let mut here = rustix::fs::openat(host, ".", OPEN_DIRECTORY, Mode::empty()).ok()?;
    for part in path.split('/') {
        here = rustix::fs::openat(&here, part, OPEN_DIRECTORY, Mode::empty()).ok()?;
        if rustix::fs::fstat(&here).ok()?.st_mode & 0o005 != 0o005 {
            return None;
        }
    }
    Some(here)
}

/// Reads a text file of the host; an absent one is empty.
fn read(host: &OwnedFd, path: &str) -> Result<String, Error> {
    let file = match rustix::fs::openat(host, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(String::new()),
        Err(error) => return Err(failed("open", format!("/{path}"))(error)),
    };
    let mut text = Vec::new();
    File::from(file)
        .read_to_end(&mut text)
        .map_err(failed("read", format!("/{path}")))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn c_name(name: &str) -> Result<CString, Error> {
    CString::new(name).map_err(|error| failed("name", name)(std::io::Error::from(error)))
}
