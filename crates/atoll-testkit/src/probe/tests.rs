//! Tests of the probe on this machine: each everyday command runs once, and attacks print the
//! format that [`attempts`] parses.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::time::Duration;

use super::{Attempt, attempts, probe, static_layer};
use crate::{Scratch, fnv64, pattern, run, run_within, wait_for};

fn call(words: &[&str]) -> Output {
    run(Command::new(probe()).args(words))
}

fn stdout_of(words: &[&str]) -> String {
    let output = call(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("the probe prints UTF-8")
}

#[test]
fn probe_is_static_and_small() {
    let bytes = std::fs::read(probe()).expect("the probe was built");
    assert!(bytes.len() < 3 << 20, "{} bytes", bytes.len());
    // Program headers: one of type PT_INTERP (3) would name a dynamic loader.
    let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    let kinds: Vec<u32> = (0..count)
        .map(|index| {
            u32::from_le_bytes(
                bytes[64 + 56 * index..][..4]
                    .try_into()
                    .expect("four bytes"),
            )
        })
        .collect();
    assert!(!kinds.contains(&3), "{kinds:?}");
}

#[test]
fn layer_has_the_probe_and_nothing_else() {
    let scratch = Scratch::new();
    static_layer(&scratch.join("layer"));
    let names: Vec<_> = std::fs::read_dir(scratch.join("layer"))
        .expect("the layer can be listed")
        .flatten()
        .collect();
    assert_eq!(names.len(), 1);
    let output = run(Command::new(scratch.join("layer/probe")).arg("true"));
    assert!(output.status.success());
}

#[test]
fn arguments_streams_and_exit_codes_pass_through() {
    assert_eq!(stdout_of(&["echo", "a", "b c"]), "a b c\n");
    assert_eq!(call(&["err", "x"]).stderr, b"x\n");
    assert_eq!(call(&["false"]).status.code(), Some(1));
    assert_eq!(call(&["exit", "42"]).status.code(), Some(42));
    let both = call(&["both", "2"]);
    assert_eq!(
        (both.stdout.as_slice(), both.stderr.as_slice()),
        (&b"out 1\nout 2\n"[..], &b"err 1\nerr 2\n"[..])
    );
    let cat = run_within(
        Command::new(probe()).arg("cat"),
        Duration::from_secs(10),
        b"through",
    );
    assert_eq!(cat.stdout, b"through");
    assert_eq!(call(&["no-such-command"]).status.code(), Some(1));
    assert!(
        stdout_of(&["list"])
            .lines()
            .any(|line| line.starts_with("b01-syscalls "))
    );
    assert!(stdout_of(&["args", "x y"]).ends_with("1 args\n2 x y\n"));
}

#[test]
fn pattern_and_hash_are_the_same_on_both_sides() {
    for size in [0, 1, 15, 16, 17, 1000, 300_001] {
        let expected = pattern(size).to_vec();
        assert_eq!(call(&["spew", &size.to_string()]).stdout, expected);
        let hash = run_within(
            Command::new(probe()).arg("hash"),
            Duration::from_secs(10),
            &expected,
        );
        let line = format!("bytes {size} fnv64 {:016x}\n", fnv64(&expected));
        assert_eq!(String::from_utf8_lossy(&hash.stdout), line);
    }
    assert_eq!(pattern(32).to_vec(), b"000000000000000\n000000000000001\n");
    assert_eq!(call(&["spew", "20", "stderr"]).stderr, pattern(20).to_vec());
}

#[test]
fn probe_adds_no_descriptors_and_ignores_no_signals() {
    // The test runner may have leaked descriptors; the probe adds none.
    let fds = stdout_of(&["fds"]);
    let numbers: Vec<_> = fds
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(numbers.starts_with(&["0", "1", "2"]), "{fds}");
    let inherited =
        |number: &&str| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    assert!(numbers.iter().all(inherited), "{fds}");
    let env = run(Command::new(probe())
        .arg("env")
        .env_clear()
        .env("ONLY", "this"));
    assert_eq!(env.stdout, b"ONLY=this\n");
    let signals = stdout_of(&["signals"]);
    assert!(
        signals.starts_with("blocked\nignored") && !signals.contains("SIGPIPE"),
        "{signals}"
    );
    assert_eq!(call(&["signal", "TERM"]).status.signal(), Some(15));
    assert_eq!(call(&["signal", "9"]).status.signal(), Some(9));
}

#[test]
fn probe_prints_process_facts() {
    let directory = Scratch::new();
    let pwd = run(Command::new(probe())
        .arg("pwd")
        .current_dir(directory.path()));
    assert_eq!(
        String::from_utf8_lossy(&pwd.stdout).trim_end(),
        directory.path().to_string_lossy()
    );
    assert!(stdout_of(&["id"]).starts_with("uid "));
    assert_eq!(
        stdout_of(&["ppid"]).trim_end(),
        std::process::id().to_string()
    );
    assert!(stdout_of(&["sid"]).contains(" sid "));
    assert!(
        stdout_of(&["nproc"])
            .trim_end()
            .parse::<u32>()
            .is_ok_and(|count| count > 0)
    );
    assert!(
        stdout_of(&["meminfo"])
            .lines()
            .any(|line| line.starts_with("MemTotal "))
    );
    assert!(
        stdout_of(&["limits"])
            .lines()
            .any(|line| line.starts_with("nofile "))
    );
    assert!(stdout_of(&["tty"]).starts_with("fd 0 not-a-tty\n"));
    assert!(!stdout_of(&["hostname"]).is_empty());
    assert_eq!(stdout_of(&["umask"]).len(), 5);
    assert!(stdout_of(&["spin", "0.01", "2"]).starts_with("turns "));
    stdout_of(&["sleep", "0.001"]);
}

#[test]
fn files_are_made_and_read() {
    let scratch = Scratch::new();
    let name = |name: &str| scratch.join(name).to_string_lossy().into_owned();
    stdout_of(&["write", &name("a"), "text"]);
    assert_eq!(stdout_of(&["read", &name("a")]), "text");
    stdout_of(&["mkfile", &name("big"), "100000"]);
    assert_eq!(
        std::fs::read(name("big")).expect("the file can be read"),
        pattern(100_000).to_vec()
    );
    stdout_of(&["touch", &name("t")]);
    stdout_of(&["link", "a", &name("l")]);
    stdout_of(&["hardlink", &name("a"), &name("h")]);
    stdout_of(&["fifo", &name("f")]);
    stdout_of(&["socket", &name("s")]);
    stdout_of(&["mkdir", &name("d")]);
    stdout_of(&["chmod", &name("t"), "4711"]);
    assert!(stdout_of(&["stat", &name("t")]).starts_with("kind regular mode 4711 "));
    assert!(stdout_of(&["stat", &name("l")]).ends_with(" target a\n"));
    let listing =
        "a regular\nbig regular\nd directory\nf fifo\nh regular\nl symlink\ns socket\nt regular\n";
    assert_eq!(
        stdout_of(&["ls", scratch.path().to_str().expect("text")]),
        listing
    );
    stdout_of(&["move", &name("t"), &name("u")]);
    stdout_of(&["remove", &name("d")]);
    let missing = call(&["read", &name("none")]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).ends_with(": ENOENT\n"));
}

#[test]
fn daemon_keeps_running_and_process_tree_grows() {
    let scratch = Scratch::new();
    let pidfile = scratch.join("pid");
    let line = stdout_of(&["daemon", "30", pidfile.to_str().expect("text")]);
    let pid = line
        .trim_end()
        .strip_prefix("pid ")
        .expect("the output has a pid");
    assert_eq!(
        std::fs::read_to_string(pidfile)
            .expect("the pid file can be read")
            .trim_end(),
        pid
    );
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the daemon runs");
    assert!(stat.contains("(probe)"));
    run(Command::new("kill").args(["-9", pid]));
    wait_for("the daemon to end", Duration::from_mins(1), || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .map_or(true, |stat| stat.contains(") Z "))
    });
    let tree = stdout_of(&["tree-of-processes", "7", "0.05"]);
    assert_eq!(
        tree.lines()
            .filter(|line| line.starts_with("process "))
            .count(),
        7,
        "{tree}"
    );
    assert!(tree.contains("ready 7\n"));
}

#[test]
fn attempt_lines_parse() {
    let text = "mount:tmpfs errno EPERM\nfork errno EAGAIN count=12\ncwd ok /a b\nx64:34 signal SIGALRM\nx64:60 exited 0\nnoise\n";
    let found = attempts(text);
    let short: Vec<_> = found
        .iter()
        .map(|attempt| {
            (
                attempt.what.as_str(),
                attempt.result.as_str(),
                attempt.detail.as_str(),
            )
        })
        .collect();
    assert_eq!(
        short,
        [
            ("mount:tmpfs", "EPERM", ""),
            ("fork", "EAGAIN", "count=12"),
            ("cwd", "ok", "/a b"),
            ("x64:34", "SIGALRM", ""),
            ("x64:60", "exited 0", ""),
        ]
    );
    assert_eq!(found[1].value("count"), Some("12"));
    assert!(found[2].worked());
}

#[test]
fn dangerous_attacks_refuse_the_host() {
    let host = std::fs::read_link("/proc/self/ns/pid")
        .is_ok_and(|link| link.to_string_lossy() == "pid:[4026531836]");
    assert!(!host || call(&["a17-pid1"]).status.code() == Some(3));
}

/// Runs an attack in new namespaces and checks the format of each line. The attack's root is an
/// unprivileged user of the host, because the host's root could write to the host's sysctls.
fn attack(words: &[&str]) -> Vec<Attempt> {
    let place = Scratch::new();
    static_layer(place.path());
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "unshare",
        "--user",
        "--map-root-user",
    ]);
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount",
        "--mount-proc",
        "--net",
        "--ipc",
        "--uts",
    ]);
    command
        .current_dir("/tmp")
        .arg(place.join("probe"))
        .args(words);
    let output = run_within(&mut command, Duration::from_mins(2), b"");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words:?}: {output:?}");
    let found = attempts(&text);
    let odd: Vec<_> = text
        .lines()
        .filter(|line| attempts(line).is_empty())
        .collect();
    assert!(odd.is_empty(), "{words:?}: {odd:?}");
    assert!(!found.is_empty(), "{words:?}");
    found
}

fn result<'a>(found: &'a [Attempt], what: &str) -> &'a Attempt {
    found
        .iter()
        .find(|attempt| attempt.what == what)
        .unwrap_or_else(|| panic!("no attempt {what} in {found:?}"))
}

#[test]
fn attack_output_has_its_format() {
    for name in [
        "a01-cwd-fd",
        "a02-fds",
        "a04-dev",
        "a05-mounts",
        "a07-write",
        "a08-read",
        "a09-mount",
        "a10-root",
    ] {
        attack(&[name]);
    }
    for name in [
        "a11-mknod",
        "a13-caps",
        "a15-cgroup",
        "a18-tty",
        "b02-uring",
        "b03-userns",
        "b05-sockets",
    ] {
        attack(&[name]);
    }
    attack(&["b04-kernel", "1"]);
    attack(&["a17-pid1"]);
    let traced = attack(&["ptrace-child"]);
    assert_eq!(result(&traced, "sibling:peek").value("same"), Some("true"));
}

#[test]
fn every_syscall_number_has_a_result() {
    let found = attack(&["b01-syscalls"]);
    for number in 0..=600 {
        result(&found, &format!("x64:{number}"));
    }
    assert!(result(&found, "x64:39").worked());
    assert_eq!(result(&found, "x64:34").result, "SIGALRM");
    assert_eq!(result(&found, "x64:60").result, "exited 0");
    assert!(result(&found, "x64:58").worked());
    assert_eq!(result(&found, "x64:600").result, "ENOSYS");
}

#[test]
fn bombs_and_hogs_stop_at_their_argument() {
    let bomb = attack(&["c01-forkbomb", "50"]);
    assert_eq!(result(&bomb, "fork").value("count"), Some("50"));
    assert_eq!(result(&bomb, "thread").value("count"), Some("50"));
    let scratch = Scratch::new();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(scratch.path(), mode).expect("the mode can be set");
    let file = scratch.join("cache").to_string_lossy().into_owned();
    for kind in [
        "anon",
        "memfd",
        "shm",
        "pipes",
        "sockets",
        "pagecache",
        "tmpfs",
        "dentries",
    ] {
        let found = attack(&["c02-memory", kind, "20000000", &format!("{file}-{kind}")]);
        let bytes: u64 = result(&found, kind)
            .value("bytes")
            .and_then(|bytes| bytes.parse().ok())
            .expect("the attempt has a byte count");
        assert!(bytes >= 20_000_000, "{kind}: {found:?}");
    }
}
