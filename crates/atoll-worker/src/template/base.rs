//! The template `base`: a sealed tree made from the host's own system, so that a sandbox has the host's tools without a
//! download.
//!
//! Invariant: nothing is in it that an ordinary user of the host could not read, nothing of the host's people and secrets, and
//! of `/etc` and `/var` only what the tables below name. The tables are the policy; the code only follows them.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::accounts::Accounts;
use super::copy::{Copier, Rules, count, is_listed, names};
use super::inside;
use super::meter::Meter;
use super::{Error, OPEN_DIRECTORY, User, exists, failed};

/// Directories of the system: as they are on the host, links on a merged `/usr`, else real.
const SYSTEM: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// What of them is of no use in a sandbox, or is the host's configuration.
const NOT_OF_SYSTEM: &[&str] = &[
    "usr/lib/modules",
    "usr/lib/firmware",
    "usr/lib/debug",
    "usr/src/linux*",
    "usr/local/etc/*",
    "usr/etc/*",
    "lib/modules",
    "lib/firmware",
];

/// What of `/etc` is copied. Everything else of it is not: passwords, keys, hosts, networks, services, tokens of package
/// managers (`npmrc`, `pip.conf`, `gitconfig`, `maven`), proxies.
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
    // shells and people
    "profile", "profile.d", "bash.bashrc", "bashrc", "bash_completion", "bash_completion.d", "skel", "shells", "login.defs",
    "adduser.conf", "deluser.conf", "default/locale", "default/useradd", "sudo.conf", "pam.d", "pam.conf", "security",
    // names of things
    "nsswitch.conf", "host.conf", "gai.conf", "protocols", "services", "rpc", "ethertypes", "networks", "netconfig",
    "localtime", "timezone", "locale.alias", "locale.gen", "locale.conf", "os-release", "debian_version", "lsb-release",
    "alpine-release", "redhat-release", "system-release", "fedora-release", "arch-release", "issue",
];

/// What of those is not: passwords, once more by name.
const NOT_OF_ETC: &[&str] = &["etc/apt/auth.conf*", "etc/security/opasswd*"];

/// State of the package manager and of its tools: copied, for a sandbox changes it.
#[rustfmt::skip]
const VAR: &[&str] = &[
    "lib/dpkg", "lib/apt/extended_states", "lib/pam", "lib/ucf", "lib/shells.state", "lib/python", "lib/xml-core",
    "lib/sgml-base", "lib/emacsen-common", "lib/dictionaries-common", "lib/vim", "cache/debconf",
];

const NOT_OF_VAR: &[&str] = &[
    "var/lib/dpkg/lock*",
    "var/lib/dpkg/triggers/Lock",
    // What a dpkg of the host has under way; inside it would look like one that was interrupted.
    "var/lib/dpkg/updates/*",
    "var/cache/debconf/passwords.dat*",
];

/// A directory that every base has: name, mode, owner and group by name.
type Directory = (&'static str, u32, &'static str, &'static str);

/// They are empty, but for what the copies above put there.
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

/// Says to package scripts that services are not to be started: nothing in a sandbox would supervise them.
const POLICY_RC_D: &str = "#!/bin/sh\nexit 101\n";

/// Fills `layer` from the system under `host`.
pub(super) fn build(
    host: &Path,
    layer: &OwnedFd,
    avoid: (u64, u64),
    meter: &mut Meter<'_>,
) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let host_path = host;
    let host = rustix::fs::open(host, flags, Mode::empty()).map_err(failed("open", host))?;
    let usr = open_below(&host, "usr").ok_or_else(|| Error::Host(host_path.join("usr")))?;
    meter.total_files = Some(count(&usr));
    meter.tell();
    let public = Rules {
        public_only: true,
        avoid,
        ..Rules::default()
    };
    let mut copier = Copier::new(layer, meter)?;
    let system = Rules {
        link: true,
        edited: Some("usr/local/"),
        excluded: NOT_OF_SYSTEM,
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
            excluded: NOT_OF_ETC,
            ..public
        },
    )?;
    copy_listed(
        &mut copier,
        &host,
        "var",
        VAR,
        &Rules {
            excluded: NOT_OF_VAR,
            ..public
        },
    )?;

    let user = User::default();
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
    hasten_logins(layer)?;
    write_files(layer, &accounts, copier.meter)
}

/// Debian's `/etc/profile` has every login shell start `id` to learn who it is, which takes as long as all else the shell does, and
/// programs of agents often run each command in one. Bash knows it already.
fn hasten_logins(layer: &OwnedFd) -> Result<(), Error> {
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
    let mut hastened = text.clone();
    for asked in ["\"$(id -u)\"", "\"`id -u`\""] {
        hastened = hastened.replace(asked, "\"${EUID:-$(id -u)}\"");
    }
    if hastened == text {
        return Ok(());
    }
    // A copy of the host's: it is not linked to.
    let written = rustix::fs::unlinkat(layer, PROFILE, AtFlags::empty())
        .map_err(std::io::Error::from)
        .and_then(|()| inside::write_file(layer, PROFILE, hastened.as_bytes(), 0o644, 0));
    written.map_err(failed("write", format!("/{PROFILE}")))
}

/// Copies what `patterns` name in the directory `top`.
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
            if is_listed(name.to_bytes(), &[last]) {
                copier.entry(&from, &name, directory, rules)?;
            }
        }
    }
    Ok(())
}

/// The accounts of the template, with a shell that it has.
fn accounts(host: &OwnedFd, layer: &OwnedFd, user: &User) -> Result<Accounts, Error> {
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
    meter: &mut Meter<'_>,
) -> Result<(), Error> {
    for (name, mode, owner, group) in DIRECTORIES {
        meter.entry()?;
        let uid = accounts.uid(owner).unwrap_or(0);
        let gid = accounts.gid(group).unwrap_or(0);
        inside::make_directories(layer, name.as_bytes())
            .and_then(|dir| inside::set_owner_and_mode(&dir, uid, gid, *mode))
            .map_err(failed("make the directory", format!("/{name}")))?;
    }
    for (name, target) in LINKS {
        meter.entry()?;
        let (directory, last) = name.rsplit_once('/').unwrap_or(("", name));
        inside::open_directory(layer, directory.as_bytes())
            .and_then(|dir| rustix::fs::symlinkat(*target, dir, last))
            .map_err(failed("make the link", format!("/{name}")))?;
    }
    name_python(layer, meter)
}

/// People and their programs say `python`, where many systems have `python3` only.
fn name_python(layer: &OwnedFd, meter: &mut Meter<'_>) -> Result<(), Error> {
    const NAME: &str = "usr/local/bin/python";
    let is_there = |name| exists(layer, name);
    if !is_there("usr/bin/python3") || is_there("usr/bin/python") || is_there(NAME) {
        return Ok(());
    }
    meter.entry()?;
    inside::make_directories(layer, b"usr/local/bin")
        .and_then(|dir| rustix::fs::symlinkat("/usr/bin/python3", dir, "python"))
        .map_err(failed("make the link", format!("/{NAME}")))
}

fn write_files(layer: &OwnedFd, accounts: &Accounts, meter: &mut Meter<'_>) -> Result<(), Error> {
    let mut write = |name: &str, contents: &str, mode: u32, gid: u32| {
        meter.entry()?;
        inside::write_file(layer, name, contents.as_bytes(), mode, gid)
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
        inside::make_directories(layer, b"etc/sudoers.d")
            .and_then(|dir| inside::set_owner_and_mode(&dir, 0, 0, 0o750))
            .map_err(failed("make the directory", "/etc/sudoers.d"))?;
    }
    let programs = inside::open_directory(layer, b"usr/sbin");
    if exists(layer, "var/lib/dpkg")
        && programs.is_ok_and(|programs| !exists(&programs, "policy-rc.d"))
    {
        write("usr/sbin/policy-rc.d", POLICY_RC_D, 0o755, 0)?;
    }
    Ok(())
}

/// Opens a directory of the host by name, without following links; `None` if there is none that everyone may read.
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

/// A text file of the host; an absent one is empty.
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
