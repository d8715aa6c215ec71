//! Prints attributes of the process: identity, working directory, file descriptors, limits, terminal, machine.

use std::fs;

use crate::sys::{self, Errno};
use crate::{Args, Command, Outcome, names, nr, out};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("pwd", "", pwd),
    Command::new("id", "", id),
    Command::new("ppid", "", |_| {
        out::say(&sys::call(nr::GETPPID, &[]).unwrap_or(0).to_string());
        Ok(0)
    }),
    Command::new("sid", "", sid),
    Command::new("fds", "", fds),
    Command::new("tty", "", tty),
    Command::new("limits", "", limits),
    Command::new("signals", "(blocked and ignored ones)", signals),
    Command::new("umask", "", |_| {
        out::say(&format!("{:04o}", sys::call(nr::UMASK, &[0]).unwrap_or(0)));
        Ok(0)
    }),
    Command::new("nproc", "", nproc),
    Command::new("meminfo", "", meminfo),
    Command::new("hostname", "", hostname),
];

/// The working directory as the kernel returns it, including `(unreachable)`.
pub(crate) fn working_directory() -> Result<String, Errno> {
    let mut buffer = [0_u8; 4096];
    let size = sys::call(nr::GETCWD, &[sys::slice_mut(&mut buffer), 4096])? as usize;
    Ok(String::from_utf8_lossy(&buffer[..size.saturating_sub(1)]).into_owned())
}

fn pwd(_: &Args) -> Outcome {
    out::say(&working_directory().map_err(|errno| errno.to_string())?);
    Ok(0)
}

/// Real, effective and saved id, by `getresuid` or `getresgid`.
pub(crate) fn three_ids(number: u64) -> [u32; 3] {
    let mut ids = [0_u32; 3];
    let at = sys::slice_mut(&mut ids);
    let _ = sys::call(number, &[at, at + 4, at + 8]);
    ids
}

fn id(_: &Args) -> Outcome {
    for (name, number) in [("uid", nr::GETRESUID), ("gid", nr::GETRESGID)] {
        let [real, effective, saved] = three_ids(number);
        out::say(&format!("{name} {real} {effective} {saved}"));
    }
    let mut groups = vec![0_u32; 65_536];
    let count = sys::call(nr::GETGROUPS, &[65_536, sys::slice_mut(&mut groups)])
        .map_err(|errno| errno.to_string())?;
    let groups: Vec<_> = groups[..count as usize]
        .iter()
        .map(u32::to_string)
        .collect();
    out::say(format!("groups {}", groups.join(" ")).trim_end());
    Ok(0)
}

fn sid(_: &Args) -> Outcome {
    let number = |call| sys::call(call, &[0]).unwrap_or(0);
    out::say(&format!(
        "pid {} pgid {} sid {}",
        sys::pid(),
        number(nr::GETPGID),
        number(nr::GETSID)
    ));
    Ok(0)
}

/// The open descriptors with what they lead to. Names are collected first: when they are looked at, the one that listed
/// the directory is closed again.
pub(crate) fn descriptors(of: &str) -> Result<Vec<(u32, String)>, Errno> {
    let entries = fs::read_dir(of).map_err(|problem| Errno::of(&problem))?;
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut found = Vec::new();
    for number in numbers {
        match fs::read_link(format!("{of}/{number}")) {
            Ok(target) => found.push((number, target.to_string_lossy().into_owned())),
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => {}
            Err(problem) => found.push((number, format!("errno {}", Errno::of(&problem)))),
        }
    }
    Ok(found)
}

fn fds(_: &Args) -> Outcome {
    if let Ok(found) = descriptors("/proc/self/fd") {
        for (number, target) in found {
            out::say(&format!("{number} {target}"));
        }
    } else {
        // Without /proc the probe can list the open descriptors, but not their targets.
        const F_GETFD: u64 = 1;
        for number in 0..4096 {
            if sys::call(nr::FCNTL, &[number, F_GETFD]).is_ok() {
                out::say(&format!("{number} open"));
            }
        }
    }
    Ok(0)
}

fn tty(_: &Args) -> Outcome {
    const TIOCGWINSZ: u64 = 0x5413;
    const TCGETS: u64 = 0x5401;
    const TIOCGPGRP: u64 = 0x540f;
    for fd in 0..3_u64 {
        let (mut size, mut settings, mut group) = ([0_u16; 4], [0_u8; 64], 0_i32);
        if sys::call(nr::IOCTL, &[fd, TCGETS, sys::slice_mut(&mut settings)]).is_err() {
            out::say(&format!("fd {fd} not-a-tty"));
            continue;
        }
        let _ = sys::call(nr::IOCTL, &[fd, TIOCGWINSZ, sys::slice_mut(&mut size)]);
        let _ = sys::call(nr::IOCTL, &[fd, TIOCGPGRP, sys::refer_mut(&mut group)]);
        let name = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let [rows, columns, ..] = size;
        out::say(&format!(
            "fd {fd} tty {} rows {rows} columns {columns} foreground {group}",
            name.display()
        ));
    }
    match sys::open("/dev/tty", 2) {
        Ok(_) => out::say("controlling ok"),
        Err(errno) => out::say(&format!("controlling errno {errno}")),
    }
    Ok(0)
}

fn limits(_: &Args) -> Outcome {
    let shown = |value: u64| {
        if value == u64::MAX {
            "unlimited".to_owned()
        } else {
            value.to_string()
        }
    };
    for (number, name) in names::LIMIT.iter().enumerate() {
        let mut pair = [0_u64; 2];
        sys::call(nr::GETRLIMIT, &[number as u64, sys::slice_mut(&mut pair)])
            .map_err(|errno| format!("getrlimit {name}: {errno}"))?;
        out::say(&format!("{name} {} {}", shown(pair[0]), shown(pair[1])));
    }
    Ok(0)
}

fn signals(_: &Args) -> Outcome {
    let mut mask = 0_u64;
    let _ = sys::call(nr::RT_SIGPROCMASK, &[0, 0, sys::refer_mut(&mut mask), 8]);
    let mut blocked = String::from("blocked");
    let mut ignored = String::from("ignored");
    for number in 1..=64 {
        let mut action = [0_u64; 4];
        let _ = sys::call(
            nr::RT_SIGACTION,
            &[number, 0, sys::slice_mut(&mut action), 8],
        );
        for (list, there) in [
            (&mut blocked, mask >> (number - 1) & 1 == 1),
            (&mut ignored, action[0] == 1),
        ] {
            if there {
                list.push(' ');
                list.push_str(&names::signal(number as i32));
            }
        }
    }
    out::say(&blocked);
    out::say(&ignored);
    Ok(0)
}

fn nproc(_: &Args) -> Outcome {
    let mut mask = [0_u64; 128];
    let size = sys::call(nr::SCHED_GETAFFINITY, &[0, 1024, sys::slice_mut(&mut mask)])
        .map_err(|errno| format!("sched_getaffinity: {errno}"))?;
    let count: u32 = mask[..size as usize / 8]
        .iter()
        .map(|word| word.count_ones())
        .sum();
    out::say(&count.to_string());
    Ok(0)
}

fn meminfo(_: &Args) -> Outcome {
    match fs::read_to_string("/proc/meminfo") {
        Ok(text) => {
            for line in text.lines() {
                let mut words = line.split_whitespace();
                let (Some(name), Some(number)) = (words.next(), words.next()) else {
                    continue;
                };
                let unit = if words.next() == Some("kB") { 1024 } else { 1 };
                let bytes = number.parse::<u64>().unwrap_or(0) * unit;
                out::say(&format!("{} {bytes}", name.trim_end_matches(':')));
            }
        }
        Err(problem) => out::say(&format!("meminfo errno {}", Errno::of(&problem))),
    }
    let mut info = [0_u64; 16];
    sys::call(nr::SYSINFO, &[sys::slice_mut(&mut info)])
        .map_err(|errno| format!("sysinfo: {errno}"))?;
    out::say(&format!("sysinfo.total {}", info[4]));
    Ok(0)
}

fn hostname(_: &Args) -> Outcome {
    let mut names = [0_u8; 6 * 65];
    sys::call(nr::UNAME, &[sys::slice_mut(&mut names)])
        .map_err(|errno| format!("uname: {errno}"))?;
    let name = names[65..130]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    out::say(&String::from_utf8_lossy(name));
    Ok(0)
}
