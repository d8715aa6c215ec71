//! A12, A13: setuid and file capabilities, and which capabilities a process has or can gain.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process;

use super::Nook;
use crate::everyday::facts::three_ids;
use crate::sys::{Errno, slice, slice_mut, text};
use crate::{Args, Command, Outcome, names, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("a12-setuid", "make PATH | run PATH | show", setuid),
    Command::new(
        "a13-caps",
        "(sets, securebits, attempts to raise)",
        inventory,
    ),
];

const PR_CAPBSET_READ: u64 = 23;
const PR_GET_SECUREBITS: u64 = 27;
const PR_SET_SECUREBITS: u64 = 28;
const PR_GET_NO_NEW_PRIVS: u64 = 39;
const PR_CAP_AMBIENT: u64 = 47;

/// Effective, permitted and inheritable sets, by `capget`.
fn sets() -> Result<[u64; 3], Errno> {
    let header = [0x2008_0522_u32, 0];
    let mut data = [0_u32; 6];
    sys::call(nr::CAPGET, &[slice(&header), slice_mut(&mut data)])?;
    Ok([0, 1, 2].map(|set: usize| u64::from(data[set]) | u64::from(data[set + 3]) << 32))
}

fn set(effective: u64, permitted: u64, inheritable: u64) -> Result<u64, Errno> {
    let header = [0x2008_0522_u32, 0];
    let [e, p, i] = [effective, permitted, inheritable];
    let data = [
        e as u32,
        p as u32,
        i as u32,
        (e >> 32) as u32,
        (p >> 32) as u32,
        (i >> 32) as u32,
    ];
    sys::call(nr::CAPSET, &[slice(&header), slice(&data)])
}

fn show(what: &str) {
    let [real, effective, saved] = three_ids(nr::GETRESUID);
    let [e, p, i] = sets().unwrap_or_default();
    let privileges = sys::call(nr::PRCTL, &[PR_GET_NO_NEW_PRIVS]).unwrap_or(99);
    out::ok(
        what,
        &format!(
            "ruid={real} euid={effective} suid={saved} effective={e:016x} permitted={p:016x} inheritable={i:016x} \
             no_new_privs={privileges}"
        ),
    );
}

fn copy_of_self(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::copy("/proc/self/exe", path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn setuid(args: &Args) -> Outcome {
    match args.text(0, "make, run or show")? {
        "make" => {
            let path = args.path(1, "PATH")?;
            out::answer("make", &copy_of_self(path, 0o4755), |()| {
                "mode=4755".to_owned()
            });
        }
        "run" => {
            show("before");
            let problem = process::Command::new(args.path(1, "PATH")?)
                .args(["a12-setuid", "show"])
                .exec();
            out::refused("exec", Errno::of(&problem), "");
        }
        "show" => show("after"),
        other => return Err(format!("make, run or show, not {other}")),
    }
    Ok(0)
}

/// A program file that carries all capabilities, if it may be made.
fn by_file() {
    let Some(nook) = Nook::new() else {
        out::skipped("filecaps", "no directory can be written");
        return;
    };
    let path = nook.path("program");
    if let Err(problem) = copy_of_self(&path, 0o755) {
        out::refused("filecaps:copy", Errno::of(&problem), "");
        return;
    }
    // Version 2, effective at once: permitted all, inheritable none.
    let value = [0x0200_0001_u32, u32::MAX, 0, 0x1ff, 0];
    let name = sys::c_path(&path);
    let words = [
        text(&name),
        text(c"security.capability"),
        slice(&value),
        20,
        0,
    ];
    if out::attempt("filecaps:set", sys::call(nr::SETXATTR, &words)) {
        match process::Command::new(&path)
            .args(["a12-setuid", "show"])
            .output()
        {
            Ok(output) => out::ok(
                "filecaps:exec",
                String::from_utf8_lossy(&output.stdout)
                    .trim_start_matches("after ok ")
                    .trim(),
            ),
            Err(problem) => out::refused("filecaps:exec", Errno::of(&problem), ""),
        }
    }
}

fn inventory(_: &Args) -> Outcome {
    show("ids");
    match fs::read_to_string("/proc/self/status") {
        Err(problem) => out::refused("status", Errno::of(&problem), ""),
        Ok(status) => {
            for line in status.lines() {
                if let Some((name, value)) = line.split_once(':')
                    && [
                        "Cap",
                        "NoNewPrivs",
                        "Seccomp",
                        "Speculation",
                        "Uid",
                        "Gid",
                        "Groups",
                    ]
                    .iter()
                    .any(|start| name.starts_with(start))
                {
                    out::ok(
                        name,
                        &value.split_whitespace().collect::<Vec<_>>().join(" "),
                    );
                }
            }
        }
    }
    match sys::call(nr::PRCTL, &[PR_GET_SECUREBITS]) {
        Ok(bits) => out::ok("securebits", &format!("{bits:#x}")),
        Err(errno) => out::refused("securebits", errno, ""),
    }
    sys::apart("raise", || {
        let before = sets().unwrap_or_default();
        for (number, name) in names::CAPABILITY.iter().enumerate() {
            let bit = 1_u64 << number;
            let [effective, permitted, inheritable] = before;
            let what = format!("raise:{name}");
            if permitted & bit != 0 {
                out::ok(&what, "already");
            } else {
                out::attempt(&what, set(effective | bit, permitted | bit, inheritable));
            }
            let _ = set(effective, permitted, inheritable | bit);
            out::attempt(
                &format!("ambient:{name}"),
                sys::call(nr::PRCTL, &[PR_CAP_AMBIENT, 2, number as u64, 0, 0]),
            );
            out::attempt(
                &format!("bounding:{name}"),
                sys::call(nr::PRCTL, &[PR_CAPBSET_READ, number as u64]),
            );
        }
        out::attempt(
            "securebits-set",
            sys::call(nr::PRCTL, &[PR_SET_SECUREBITS, 0x2f]),
        );
    });
    by_file();
    Ok(0)
}
