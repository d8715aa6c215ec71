//! Account files of a template: the host's system users, no accounts of people, and the sandbox's
//! own user.
//!
//! Pure: text in, text out. No password of the host is read; every account is locked.

use std::collections::HashMap;
use std::fmt::Write;

use super::{ID_COUNT, NOBODY, TemplateUser};

/// Ids below this are system accounts.
const FIRST_REGULAR_ID: u32 = 1000;

/// Day of the last password change, since 1970. It must not be 0, which means that the password has
/// to be changed at login.
const PASSWORD_CHANGED_DAY: u32 = 19_700;

/// `/etc/passwd`, `/etc/group` and `/etc/shadow` of a template.
#[derive(Debug)]
pub(super) struct Accounts {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) shadow: String,
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
}

impl Accounts {
    /// Creates them from the host's `passwd` and `group`.
    pub(super) fn new(
        host_passwd: &str,
        host_group: &str,
        user: &TemplateUser,
        shell: &str,
    ) -> Self {
        let mut accounts = Self {
            passwd: String::new(),
            group: String::new(),
            shadow: String::new(),
            users: HashMap::new(),
            groups: HashMap::new(),
        };
        accounts.add_users(host_passwd, user, shell);
        accounts.add_groups(host_group, user);
        accounts
    }

    /// Id of a user, if it exists.
    pub(super) fn uid(&self, name: &str) -> Option<u32> {
        self.users.get(name).copied()
    }

    /// Id of a group, if it exists.
    pub(super) fn gid(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    fn add_users(&mut self, host: &str, user: &TemplateUser, shell: &str) {
        for line in host.lines() {
            let [name, _, uid, gid, comment, home, its_shell] =
                line.split(':').collect::<Vec<_>>()[..]
            else {
                continue;
            };
            let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse::<u32>()) else {
                continue;
            };
            if is_account_name(name) && is_system(uid) && name != user.name {
                let gid = if gid < ID_COUNT { gid } else { NOBODY };
                self.add_user(name, uid, &format!("{gid}:{comment}:{home}:{its_shell}"));
            }
        }
        if self.uid("root").is_none() {
            self.add_user("root", 0, &format!("0:root:/root:{shell}"));
        }
        self.add_user(
            &user.name,
            user.uid,
            &format!("{}::{}:{shell}", user.gid, user.home.display()),
        );
    }

    fn add_user(&mut self, name: &str, uid: u32, rest: &str) {
        if self.users.insert(name.to_owned(), uid).is_none() {
            let _ = writeln!(self.passwd, "{name}:x:{uid}:{rest}");
            let _ = writeln!(self.shadow, "{name}:*:{PASSWORD_CHANGED_DAY}:0:99999:7:::");
        }
    }

    fn add_groups(&mut self, host: &str, user: &TemplateUser) {
        for line in host.lines() {
            let [name, _, gid, members] = line.split(':').collect::<Vec<_>>()[..] else {
                continue;
            };
            let Ok(gid) = gid.parse() else { continue };
            if is_account_name(name) && is_system(gid) && name != user.name {
                let members: Vec<_> = members
                    .split(',')
                    .filter(|member| *member != user.name && self.users.contains_key(*member))
                    .collect();
                self.add_group(name, gid, &members.join(","));
            }
        }
        if self.gid("root").is_none() {
            self.add_group("root", 0, "");
        }
        self.add_group(&user.name, user.gid, "");
    }

    fn add_group(&mut self, name: &str, gid: u32, members: &str) {
        if self.groups.insert(name.to_owned(), gid).is_none() {
            let _ = writeln!(self.group, "{name}:x:{gid}:{members}");
        }
    }
}

/// Lines that add `user` to an imported tree, by file.
pub(super) fn account_lines(user: &TemplateUser) -> [(&'static str, String); 3] {
    let TemplateUser {
        name,
        uid,
        gid,
        home,
    } = user;
    [
        (
            "etc/passwd",
            format!("{name}:x:{uid}:{gid}::{}:/bin/sh\n", home.display()),
        ),
        ("etc/group", format!("{name}:x:{gid}:\n")),
        (
            "etc/shadow",
            format!("{name}:*:{PASSWORD_CHANGED_DAY}:0:99999:7:::\n"),
        ),
    ]
}

fn is_system(id: u32) -> bool {
    id < FIRST_REGULAR_ID || id == NOBODY
}

/// Lines of network directories (NIS) begin with `+` or `-`.
fn is_account_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(['+', '-', '#'])
}
