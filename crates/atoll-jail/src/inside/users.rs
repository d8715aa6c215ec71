//! Looks up users and groups of a sandbox. The files belong to the sandbox and are not trusted; the code runs only in PID 1
//! and its children, with the rights of the sandbox.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use crate::wire::User;

/// Maximum bytes of a name: the limit of the kernel.
const LONGEST_NAME: usize = 256;

/// A user of the sandbox, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) home: String,
    pub(super) shell: String,
}

/// A cached lookup, with the state of the files at that time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    name: String,
    stamp: Vec<u64>,
    identity: Identity,
}

/// Stamp of `/etc/passwd` and `/etc/group`, which differs after every change. `None` if they changed too recently for a
/// further change to be visible.
fn stamp() -> Option<Vec<u64>> {
    const SETTLED: u64 = 2;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?
        .as_secs();
    let mut stamp = Vec::with_capacity(12);
    for path in [c"/etc/passwd", c"/etc/group"] {
        match rustix::fs::stat(path) {
            Ok(found) => {
                let changed = found.st_ctime.cast_unsigned();
                if changed.saturating_add(SETTLED) > now {
                    return None;
                }
                stamp.extend([
                    found.st_dev,
                    found.st_ino,
                    found.st_size.cast_unsigned(),
                    found.st_mtime.cast_unsigned(),
                    changed,
                    found.st_ctime_nsec,
                ]);
            }
            Err(_) => stamp.push(0),
        }
    }
    Some(stamp)
}

/// Like [`find`], but reads the files only if they or the name changed since the last lookup.
pub(super) fn find_again(
    name: &str,
    template: &User,
    known: &mut Option<Known>,
) -> Option<Identity> {
    let stamp = stamp();
    if let (Some(known), Some(stamp)) = (&known, &stamp)
        && known.name == name
        && known.stamp == *stamp
    {
        return Some(known.identity.clone());
    }
    // Taken before the files are read: a concurrent change changes the stamp.
    let identity = find(name, template)?;
    *known = stamp.map(|stamp| Known {
        name: name.to_owned(),
        stamp,
        identity: identity.clone(),
    });
    Some(identity)
}

/// Finds a user by name, by number or by `uid:gid`; an empty name is the template's user. Root and
/// the template's user exist even where the sandbox has no `/etc/passwd`.
pub(super) fn find(name: &str, template: &User) -> Option<Identity> {
    resolve(name, template, &read("/etc/passwd"), &read("/etc/group"))
}

fn resolve(name: &str, template: &User, passwd: &str, group: &str) -> Option<Identity> {
    let name = if name.is_empty() {
        template.name.as_str()
    } else {
        name
    };
    let (user, asked_gid) = match name.split_once(':') {
        Some((user, gid)) => (user, Some(group_id(gid, group)?)),
        None => (name, None),
    };
    let number = user.parse::<u32>().ok();
    let listed = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [login, _, uid, gid, _, home, shell] = fields[..] else {
            return None;
        };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        (login == user || number == Some(uid)).then(|| Identity {
            name: login.into(),
            uid,
            gid,
            groups: Vec::new(),
            home: if home.is_empty() {
                "/".into()
            } else {
                home.into()
            },
            shell: if shell.is_empty() {
                "/bin/sh".into()
            } else {
                shell.into()
            },
        })
    });
    let unlisted = |name: &str, uid, gid, home: &str| Identity {
        name: name.into(),
        uid,
        gid,
        groups: Vec::new(),
        home: home.into(),
        shell: "/bin/sh".into(),
    };
    let mut identity = listed
        .or_else(|| (user == "root" || number == Some(0)).then(|| unlisted("root", 0, 0, "/root")))
        .or_else(|| {
            (user == template.name || number == Some(template.uid))
                .then(|| unlisted(&template.name, template.uid, template.gid, &template.home))
        })
        .or_else(|| number.map(|uid| unlisted(user, uid, asked_gid.unwrap_or(uid), "/")))?;
    // Ids above the sandbox's range do not exist.
    if identity.uid > 65535 || identity.gid > 65535 {
        return None;
    }
    if let Some(gid) = asked_gid {
        identity.gid = gid;
    }
    identity.groups = groups(&identity, group);
    Some(identity)
}

/// A group's number by name or number.
pub(super) fn find_group(name: &str) -> Option<u32> {
    group_id(name, &read("/etc/group"))
}

/// Names for numbers.
pub(super) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub(super) fn read(template: &User) -> Self {
        let mut users = names(&read("/etc/passwd"));
        users.entry(0).or_insert_with(|| "root".into());
        let own = || template.name.clone();
        users.entry(template.uid).or_insert_with(own);
        let mut groups = names(&read("/etc/group"));
        groups.entry(0).or_insert_with(|| "root".into());
        groups.entry(template.gid).or_insert_with(own);
        Self { users, groups }
    }

    /// Name of a user, or the number if it has no name.
    pub(super) fn user(&self, uid: u32) -> String {
        let name = self.users.get(&uid).cloned();
        name.unwrap_or_else(|| uid.to_string())
    }

    /// Name of a group, or the number if it has no name.
    pub(super) fn group(&self, gid: u32) -> String {
        let name = self.groups.get(&gid).cloned();
        name.unwrap_or_else(|| gid.to_string())
    }
}

/// The first name of each number: both files have them as first and third field.
fn names(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (name, number) = (fields.next(), fields.nth(1));
        if let (Some(name), Some(Ok(number))) = (name, number.map(str::parse))
            && (1..=LONGEST_NAME).contains(&name.len())
        {
            names.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    names
}

fn group_id(name: &str, group: &str) -> Option<u32> {
    let listed = group.lines().find_map(|line| {
        let mut fields = line.split(':');
        let login = fields.next()?;
        (login == name).then(|| fields.nth(1)?.parse().ok())?
    });
    listed
        .or_else(|| name.parse().ok())
        .filter(|gid| *gid <= 65535)
}

fn groups(identity: &Identity, group: &str) -> Vec<u32> {
    let mut groups: Vec<u32> = group
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [_, _, gid, members] = fields[..] else {
                return None;
            };
            members
                .split(',')
                .any(|member| member == identity.name)
                .then(|| gid.parse().ok())?
        })
        .filter(|gid| *gid <= 65535)
        .take(64)
        .collect();
    groups.push(identity.gid);
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Text of a small regular file; `None` for others.
fn read(path: &str) -> String {
    const LONGEST: u64 = 1 << 20;
    let text = || {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .ok()?;
        file.metadata().ok()?.is_file().then_some(())?;
        let mut bytes = Vec::with_capacity(16 * 1024);
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    text().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nann:x:1001:1001::/home/ann:\nbroken\nbig:x:70000:70000::/:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nwheel:x:10:ann,bob\nann:x:1001:\n";

    fn check(name: &str) -> Option<(u32, u32, Vec<u32>, String)> {
        let template = User {
            name: "user".into(),
            uid: 1000,
            gid: 1000,
            home: "/home/user".into(),
        };
        let found = resolve(name, &template, PASSWD, GROUP)?;
        Some((found.uid, found.gid, found.groups, found.home))
    }

    #[test]
    fn names_and_numbers_are_found() {
        assert_eq!(
            check("ann"),
            Some((1001, 1001, vec![10, 1001], "/home/ann".into()))
        );
        assert_eq!(check("1001"), check("ann"));
        assert_eq!(
            check("ann:wheel"),
            Some((1001, 10, vec![10], "/home/ann".into()))
        );
        assert_eq!(check("4242"), Some((4242, 4242, vec![4242], "/".into())));
        assert_eq!(check("4242:7"), Some((4242, 7, vec![7], "/".into())));
    }

    #[test]
    fn template_user_and_root_need_no_passwd() {
        assert_eq!(
            check(""),
            Some((1000, 1000, vec![1000], "/home/user".into()))
        );
        let template = User {
            name: "user".into(),
            uid: 1000,
            gid: 1000,
            home: "/w".into(),
        };
        assert_eq!(
            resolve("root", &template, "", "").map(|found| found.uid),
            Some(0)
        );
        assert_eq!(
            resolve("user", &template, "", "").map(|found| found.home),
            Some("/w".into())
        );
    }

    #[test]
    fn id_resolves_to_its_first_listed_name() {
        let text =
            "root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:\nann:x:1001:\n:x:7:\nbroken\nodd:x:-1:\n";
        let names = names(text);
        let mut names: Vec<_> = names
            .iter()
            .map(|(id, name)| (*id, name.as_str()))
            .collect();
        names.sort_unstable();
        assert_eq!(names, [(0, "root"), (1001, "ann")]);
    }

    #[test]
    fn unknown_names_and_ids_out_of_range_are_not_found() {
        for name in [
            "nobody-here",
            "ann:nogroup",
            "big",
            "70000",
            "-1",
            "0x10",
            "1001:70000",
        ] {
            assert_eq!(check(name), None, "{name}");
        }
    }
}
